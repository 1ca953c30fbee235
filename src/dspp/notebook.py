"""Parts of the HTML that notebooks show: tables and small pictures, without other libraries.

All text is escaped here. Colours follow the text of the page, light or dark.
"""

from collections.abc import Iterable, Sequence
from html import escape

from dspp.numbers import percent

ACCENT, MARK = "#2f86c6", "#d9661f"  # readable on light and on dark pages
_STYLE = """
.dspp-html { font-size: 13px; line-height: 1.4; max-width: 72em; }
.dspp-html table { border-collapse: collapse; margin: 0 0 8px; width: auto; font-variant-numeric: tabular-nums; }
.dspp-html table { font-size: inherit; color: inherit; }
.dspp-html .title { padding: 0 0 4px; opacity: 0.8; }
.dspp-html th, .dspp-html td { padding: 2px 12px 2px 0; text-align: right; border: 0; background: none; }
.dspp-html thead th { border-bottom: 1px solid currentColor; font-weight: normal; opacity: 0.8; }
.dspp-html thead th:first-child, .dspp-html thead th.picture { text-align: left; }
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
    """Text that is HTML already, as all functions here return it."""


def page(*parts: Html) -> Html:
    """Return the parts one below the other, with their style."""
    return Html(f'<div class="dspp-html"><style>{_STYLE}</style>{"".join(parts)}</div>')


def beside(*parts: Html) -> Html:
    """Return the parts side by side, as far as there is room."""
    return Html(f'<div class="parts">{"".join(f"<div>{part}</div>" for part in parts)}</div>')


def paragraph(text: str, strong: str = "") -> Html:
    """Return a paragraph that begins with a name."""
    return Html(f"<p>{f'<strong>{escape(strong)}</strong> ' if strong else ''}{escape(text)}</p>")


def fold(title: str, inside: Html, is_open: bool = False) -> Html:
    """Return something that opens and closes on a click."""
    start = '<details open="">' if is_open else "<details>"
    return Html(f"{start}<summary>{escape(title)}</summary>{inside}</details>")


def preformatted(text: str) -> Html:
    """Return text whose line breaks are kept."""
    return Html(f"<pre>{escape(text)}</pre>")


def bullets(texts: Iterable[str]) -> Html:
    """Return a list."""
    return Html(f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>")


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), title: str = "", picture: str = "") -> Html:
    """Return a table; the first cell of each row is its name, and cells that are `Html` stay as they are.

    Args:
        rows: The cells.
        header: The names of the columns, if any.
        title: The line above the table.
        picture: The name of the last column, if it contains pictures.
    """
    names = [f"<th>{escape(name)}</th>" for name in header]
    names += [f'<th class="picture">{escape(picture)}</th>'] if picture else []
    head = f"<thead><tr>{''.join(names)}</tr></thead>" if names else ""
    lines = (
        f"<tr><th>{_cell(first)}</th>{''.join(f'<td>{_cell(c)}</td>' for c in rest)}</tr>" for first, *rest in rows
    )
    return Html(f"{_title(title)}<table>{head}<tbody>{''.join(lines)}</tbody></table>")


def coverage_bars(coverage: dict[float, float], title: str) -> Html:
    """Return a picture of the share of rows inside their interval of each probability, which a mark shows."""
    label, length, step = 48, 200, 24
    parts = []
    for k, (level, share) in enumerate(coverage.items()):
        y = step * k
        nominal = label + length * level
        parts.append(
            f'<text x="{label - 8}" y="{y + 12}" text-anchor="end">{100 * level:g} %</text>'
            f'<rect x="{label}" y="{y + 2}" width="{length}" height="12" fill="currentColor" opacity="0.1"/>'
            f'<rect x="{label}" y="{y + 2}" width="{length * share:.1f}" height="12" fill="{ACCENT}"/>'
            f'<path d="M{nominal:.1f} {y - 1}v18" stroke="{MARK}" stroke-width="2"/>'
            f'<text x="{label + length + 8}" y="{y + 12}">{percent(share)}</text>'
        )
    width, height = label + length + 60, step * len(coverage)
    head = f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
    return Html(f'{_title(title)}{head} aria-label="{escape(title)}">{"".join(parts)}</svg>')


def curve(x: Sequence[float], height: Sequence[float], shaded: tuple[float, float], ends: tuple[float, float]) -> Html:
    """Return a small picture of a density.

    Args:
        x: Values in increasing order.
        height: The density at each of them; the picture is as high as the largest.
        shaded: The interval under the curve to fill.
        ends: The values at the left and the right of the picture.
    """
    width, tall = 160, 22
    scale, top = width / (ends[1] - ends[0]), max(height)
    points = [(scale * (a - ends[0]), tall - (tall - 2) * b / top) for a, b in zip(x, height, strict=True)]
    inside = [point for point, a in zip(points, x, strict=True) if shaded[0] <= a <= shaded[1]]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    area = " ".join(f"{a:.1f},{b:.1f}" for a, b in inside)
    under = f"{inside[0][0]:.1f},{tall} {area} {inside[-1][0]:.1f},{tall}" if inside else ""
    return Html(
        f'<svg width="{width}" height="{tall}" viewBox="0 0 {width} {tall}" role="img" aria-label="density">'
        f'<polygon points="{under}" fill="{ACCENT}" opacity="0.35"/>'
        f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="1.5"/></svg>'
    )


def _title(text: str) -> str:
    return f'<div class="title">{escape(text)}</div>' if text else ""


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)
