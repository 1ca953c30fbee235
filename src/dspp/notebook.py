"""The HTML that notebooks show: elements whose text is escaped, without other libraries.

Colours follow the text of the page, light or dark.
"""

from collections.abc import Sequence
from html import escape

ACCENT, MARK = "#2f86c6", "#d9661f"  # readable on light and on dark pages
_STYLE = """
.dspp-html { font-size: 13px; line-height: 1.4; max-width: 72em; }
.dspp-html table { border-collapse: collapse; margin: 0 0 8px; width: auto; font-variant-numeric: tabular-nums; }
.dspp-html table { font-size: inherit; color: inherit; }
.dspp-html .title { padding: 0 0 4px; opacity: 0.8; }
.dspp-html th, .dspp-html td { padding: 2px 12px 2px 0; text-align: right; border: 0; background: none; }
.dspp-html thead th { border-bottom: 1px solid currentColor; font-weight: normal; opacity: 0.8; }
.dspp-html thead th:first-child, .dspp-html table:has(svg) thead th:last-child { text-align: left; }
.dspp-html tbody th { text-align: left; font-weight: normal; }
.dspp-html p { margin: 0 0 8px; }
.dspp-html .parts { display: flex; flex-wrap: wrap; gap: 8px 40px; margin: 0 0 8px; }
.dspp-html pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0; }
.dspp-html ul { margin: 4px 0; padding-left: 20px; max-height: 14em; overflow-y: auto; }
.dspp-html summary { cursor: pointer; }
.dspp-html svg { display: block; overflow: visible; }
.dspp-html svg text { font: 11px sans-serif; fill: currentColor; }
"""


class Html(str):
    """Text that is HTML already."""


def element(name: str, *inside: str, **attributes: object) -> Html:
    """Return an element; what is inside is escaped unless it is `Html`, and an underscore in a name means a hyphen."""
    given = "".join(f' {key.strip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(one if isinstance(one, Html) else escape(one) for one in inside)}</{name}>")


def page(name: str, text: str, *parts: Html) -> Html:
    """Return a paragraph that begins with a name, the parts below it, and their style."""
    return element(
        "div",
        element("style", Html(_STYLE)),
        element("p", element("strong", name), f" {text}"),
        *parts,
        class_="dspp-html",
    )


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), title: str = "") -> Html:
    """Return a table with its title; the first cell of each row is its name."""
    head = element("thead", element("tr", *(element("th", name) for name in header))) if header else Html()
    body = (element("tr", element("th", first), *(element("td", cell) for cell in rest)) for first, *rest in rows)
    return titled(title, element("table", head, element("tbody", *body)))


def titled(title: str, inside: Html) -> Html:
    """Return a title, if there is one, above something."""
    return Html((element("div", title, class_="title") if title else "") + inside)
