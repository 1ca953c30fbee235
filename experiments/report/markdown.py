"""The report as Markdown: a file an experiment, an index, and the table of the README."""

import re
from collections.abc import Sequence

from experiments.report.blocks import Block, Entry, Part, Picture, Section, Table

_SPECIAL = re.compile(r"([\\*_\[\]<>|#~$])")


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line; code between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") and "|" not in p else _plain(p) for p in parts)


def _plain(text: str) -> str:
    quoted = _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;").replace("`", "\\`"))
    return quoted.replace("\\<", "&lt;").replace("\\>", "&gt;")


def section_text(section: Section) -> str:
    """Return the file of one experiment: all its protocols, one after the other."""
    lines = [f"# {escaped(section.title)}", escaped(section.question), *map(escaped, section.remarks)]
    for part in section.parts:
        lines += [f"## Protocol `{part.protocol}`", *_bullets(part.verdict)]
        for block in part.blocks:
            lines += _block(block)
    return "\n\n".join(lines) + "\n"


def _bullets(sentences: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {escaped(sentence)}" for sentence in sentences)] if sentences else []


def _block(block: Block) -> list[str]:
    lines = [f"### {escaped(block.title)}"] if block.title else []
    lines += _bullets(block.lines)
    for table in block.tables:
        lines += [f"**{escaped(table.title)}**", table_text(table), f"*{escaped(table.caption)}*"]
    for picture in block.pictures:
        lines += [_image(picture), f"*{escaped(picture.caption)}*"]
    return lines


def _image(picture: Picture) -> str:
    return f"[![{escaped(picture.title)}](figures/{picture.name}.png)](figures/{picture.name}.svg)"


def table_text(table: Table) -> str:
    """Return the rows of a table; the first column to the left, all others to the right."""
    header = f"| {' | '.join(map(escaped, table.header))} |"
    rule = f"|:---|{'---:|' * (len(table.header) - 1)}"
    return "\n".join([header, rule, *(f"| {' | '.join(map(_entry, row))} |" for row in table.rows)])


def _entry(entry: Entry) -> str:
    first = _strong(entry.text, entry.bold)
    return f"{first}<br>paper {_strong(entry.second, entry.second_bold)}" if entry.second else first


def _strong(text: str, bold: bool) -> str:
    return f"**{escaped(text)}**" if bold else escaped(text)


def headline_text(table: Table) -> str:
    """Return the README's table with its caption."""
    return f"{escaped(table.title)}\n\n{table_text(table)}\n\n*{escaped(table.caption)}*\n"


def index_text(sections: Sequence[Section], headline: Table, notes: Sequence[str]) -> str:
    """Return the way in: what came out of each experiment in a few sentences, with links."""
    lines = ["# The paper's experiments: ours beside the paper's"]
    lines += ["[The whole report as one page](index.html)", *_bullets(notes)]
    lines += ["## Headline", headline_text(headline).rstrip()]
    for section in sections:
        lines.append(f"## [{escaped(section.title)}]({section.name}.md)")
        lines.append(f"{escaped(section.question)} ([CSV]({section.name}.csv))")
        lines += map(escaped, section.remarks)
        for part in section.parts:
            lines += _short(part)
    return "\n\n".join(lines) + "\n"


def _short(part: Part) -> list[str]:
    return [f"Protocol `{part.protocol}`:", *_bullets(part.verdict)]
