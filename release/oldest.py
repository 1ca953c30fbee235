"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `make test-oldest` tests with them.

Of torch, older versions than the pinned one exist only as builds for CUDA, of gigabytes, so its bound is not tested.
"""

import re
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("plot", "report", "tune")  # Ray and MLflow have tests of their own
FRAMES = ("pandas", "polars")  # of which users bring their own version
TORCH = "torch==2.13.0"


def pins() -> list[str]:
    """Return a line for each library that users need or bring."""
    optional = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    lines += [line for line in optional["dev"] if line.startswith(FRAMES)]
    bounds = (re.fullmatch(r"([A-Za-z0-9-]+)>=([0-9.]+)(,<[0-9.]+)?", line) for line in lines)
    return [TORCH if found[1] == "torch" else f"{found[1]}=={found[2]}" for found in bounds if found]


if __name__ == "__main__":
    print("\n".join(pins()))
