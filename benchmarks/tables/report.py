"""The results as Markdown: the section on everyday tables of the results report."""

from collections.abc import Sequence

from benchmarks.tables.records import Record
from experiments.report.everyday import everyday_section
from experiments.report.markdown import section_text
from experiments.report.suite import Suite


def write(found: Sequence[Record]) -> str:
    """Return the report on these records."""
    section = everyday_section(Suite.of(found))
    return section_text(section) if section else ""
