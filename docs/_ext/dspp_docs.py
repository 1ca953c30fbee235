"""What the site needs beyond Sphinx: formulas without JavaScript, docstrings as they are written here, the report."""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from public_names import has_example, missing_library, public_docstring, public_names
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "results" / "report"
LINKS = {  # files of the repository that pages link to, so that the links also work on GitHub, and their pages
    "../results/report/index.md": "reproduction.md",
    "../results/tables.md": "reproduction.md#everyday-tables",
    "../../results/report/index.md": "../reproduction.md",
    "../NOTATION.md": "notation.md",
    "../../NOTATION.md": "../notation.md",
    "../CONTRIBUTING.md": "extending.md",
    "../../CONTRIBUTING.md": "../extending.md",
}
COLON = "\N{RATIO}"  # stands for a colon while napoleon reads a docstring
log = logging.getLogger(__name__)


# ---------------------------------------------------------------- formulas as MathML, which browsers draw themselves


def _formula(node: nodes.Element, inline: bool) -> str:
    tex = re.sub(
        r"\\(sum|prod)_", r"\\\1\\nolimits_", node.astext()
    )  # limits collide where there is no font for formulas
    try:
        tree = latex2mathml.tex2mathml(tex, as_block=not inline)
    except Exception as problem:
        log.warning("formula %r cannot be converted: %s", tex, problem, location=node)
        return f"<code>{tex}</code>"
    return str(tree)


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in the text."""
    self.body.append(_formula(node, inline=True))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on its own line."""
    self.body.append(f'<div class="math-block">{_formula(node, inline=False)}</div>\n')
    raise nodes.SkipNode


# ---------------------------------------------------------------- docstrings


def tidy_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Add the fields of a dataclass that have comments in its source, and escape bars, which reST reads as marks."""
    if what == "data":  # Sphinx finds only the docstring of its class
        lines[:] = inspect.cleandoc(public_docstring(name)).splitlines()
    if inspect.isclass(obj) and dataclasses.is_dataclass(obj) and not any(s.strip() == "Attributes:" for s in lines):
        fields = list(_field_comments(obj))
        if fields:
            lines += ["", "Attributes:", *(f"    {field}: {comment}" for field, comment in fields), ""]
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(":", COLON)  # napoleon takes what is before it for a type
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(`[^`]*`)", line)
            lines[i] = "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


def restore_colons(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put back what `tidy_docstring` hid from napoleon."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def shorten_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Write the parameters that all estimators share once, at `Parameters`."""
    from dspp.estimators.regressor import Regressor

    return ("(**parameters)", "") if inspect.isclass(obj) and issubclass(obj, Regressor) else None


def _field_comments(kind: type) -> Iterator[tuple[str, str]]:
    """Return the fields in the body of a class that have a comment at the end of their line, with the comment."""
    source = textwrap.dedent(inspect.getsource(kind))
    rows = source.splitlines()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            _, _, comment = rows[(statement.end_lineno or 1) - 1].partition("  # ")
            if comment and not comment.startswith("noqa"):
                yield statement.target.id, comment[0].upper() + comment[1:] + "."


def check_public_names(app: Sphinx) -> None:
    """Raise an error if a name of the API reference has no docstring or no example."""
    for name in public_names():
        if library := missing_library(name):
            raise ExtensionError(f"{name} needs {library}, which is not installed; run make docs")
        if not public_docstring(name):
            raise ExtensionError(f"{name} has no docstring")
        if not has_example(name):
            raise ExtensionError(f"{name} has no example in its docstring")


# ---------------------------------------------------------------- figures of tutorials


def describe_figures(app: Sphinx, tree: nodes.document) -> None:
    """Give the figures that code has drawn the paragraph above them as a text for screen readers."""
    for image in tree.findall(nodes.image):
        if "alt" in image:
            continue
        top: nodes.Node = image
        while top.parent is not None and not isinstance(top.parent, nodes.section):
            top = top.parent
        if top.parent is None:
            continue
        above = [node for node in top.parent.children[: top.parent.index(top)] if isinstance(node, nodes.paragraph)]
        image["alt"] = above[-1].astext().replace("\n", " ") if above else top.parent.next_node(nodes.title).astext()


# ---------------------------------------------------------------- links and files of the repository


def map_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Point links to files outside of this folder to the pages that contain them."""
    for link, page in LINKS.items():
        source[0] = source[0].replace(f"]({link})", f"]({page})")


def copy_report(app: Sphinx, problem: Exception | None) -> None:
    """Copy the results report into the site."""
    if problem is None and app.builder.format == "html":
        shutil.copytree(REPORT, Path(app.outdir) / "report", dirs_exist_ok=True)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect everything to Sphinx."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("autodoc-process-docstring", tidy_docstring, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", restore_colons, priority=900)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("builder-inited", check_public_names)
    app.connect("doctree-read", describe_figures)
    app.connect("source-read", map_links)
    app.connect("build-finished", copy_report)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
