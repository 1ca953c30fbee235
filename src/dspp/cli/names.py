"""Names of the package's own parts for help and completion, read from its source: the registries would import torch."""

import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def registered(registry: str) -> tuple[str, ...]:
    """The names in the lines `REGISTRY.register("name")` of this package, such as those of "KERNELS"."""
    line = re.compile(rf'^@?{registry}\.register\("([^"]+)"\)', re.MULTILINE)  # not indented: no example in a docstring
    texts = (text for text in _sources() if f"{registry}.register(" in text)
    return tuple(name for text in texts for name in line.findall(text))


@cache
def _sources() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
