"""The report as Markdown: one file per experiment, an index, and the README's table."""

import re
from collections.abc import Sequence

from experiments.report.blocks import Block, Entry, Part, Picture, Section, Table

_SPECIAL = re.compile(r"([\\*_\[\]<>|#~$])")


def escape(text: str) -> str:
    """Escape text so that Markdown shows it literally, on one line; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") and "|" not in p else _plain(p) for p in parts)


def _plain(text: str) -> str:
    quoted = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("`", "\\`"))
    return quoted.replace("\\<", "&lt;").replace("\\>", "&gt;")


def section_text(section: Section) -> str:
    """Return the file of one experiment: its protocols one after the other."""
    lines = [f"# {escape(section.title)}", escape(section.question), *map(escape, section.remarks)]
    for part in section.parts:
        lines += [f"## Protocol `{part.protocol}`"] if part.protocol else []
        lines += _bullets(part.verdict)
        for block in part.blocks:
            lines += _block(block)
    return "\n\n".join(lines) + "\n"


def _bullets(sentences: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {escape(sentence)}" for sentence in sentences)] if sentences else []


def _block(block: Block) -> list[str]:
    lines = [f"### {escape(block.title)}"] if block.title else []
    lines += _bullets(block.lines)
    for table in block.tables:
        lines += [f"**{escape(table.title)}**", table_text(table), f"*{escape(table.caption)}*"]
    for picture in block.pictures:
        lines += [_image(picture), f"*{escape(picture.caption)}*"]
    return lines


def _image(picture: Picture) -> str:
    return f"[![{escape(picture.title)}](figures/{picture.name}.png)](figures/{picture.name}.svg)"


def table_text(table: Table) -> str:
    """Return a table with its first column and columns of text left-aligned, and the others right-aligned."""
    header = f"| {' | '.join(map(escape, table.header))} |"
    rule = "|".join(":---" if i == 0 or i in table.words else "---:" for i in range(len(table.header)))
    return "\n".join([header, f"|{rule}|", *(f"| {' | '.join(map(_entry, row))} |" for row in table.rows)])


def _entry(entry: Entry) -> str:
    first = _strong(entry.text, entry.bold)
    return f"{first}<br>paper {_strong(entry.second, entry.second_bold)}" if entry.second else first


def _strong(text: str, bold: bool) -> str:
    return f"**{escape(text)}**" if bold else escape(text)


def headline_text(table: Table) -> str:
    """Return the README's table with its caption."""
    return f"{escape(table.title)}\n\n{table_text(table)}\n\n*{escape(table.caption)}*\n"


def index_text(sections: Sequence[Section], headline: Table, notes: Sequence[str]) -> str:
    """Return the index: the results of each experiment in a few sentences, with links."""
    lines = ["# The paper's experiments: our results and the paper's"]
    lines += ["[The whole report as one page](index.html)", *_bullets(notes)]
    lines += ["## Headline", headline_text(headline).rstrip()]
    for section in sections:
        lines.append(f"## [{escape(section.title)}]({section.name}.md)")
        lines.append(f"{escape(section.question)} ([CSV]({section.name}.csv))")
        lines += map(escape, section.remarks)
        for part in section.parts:
            lines += _short(part)
    return "\n\n".join(lines) + "\n"


def _short(part: Part) -> list[str]:
    return [*([f"Protocol `{part.protocol}`:"] if part.protocol else []), *_bullets(part.verdict)]
