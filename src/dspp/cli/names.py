"""Names of the package's parts for help and completion, read from its source, as the registries import torch."""

import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def read_registered_names(registry: str) -> tuple[str, ...]:
    """Return the names in the lines `REGISTRY.register("name")` of this package, for a registry such as "KERNELS"."""
    line = re.compile(
        rf'^@?{registry}\.register\("([^"]+)"\)', re.MULTILINE
    )  # not indented, to skip examples in docstrings
    texts = (text for text in _sources() if f"{registry}.register(" in text)
    return tuple(name for text in texts for name in line.findall(text))


@cache
def _sources() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
