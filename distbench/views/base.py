"""Base class of views, and the cells of a case.

A view is a word of ``distbench show --view``, a chapter of the page and a table ``view_<word>`` of
``distbench query``. Those of kinds of job are in ``distbench/jobs/<kind>/view.py``, all others in
``distbench/views/<word>.py``; the registry finds both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from distbench.core import registry
from distbench.core.columns import Better
from distbench.core.grouping import group_pairs
from distbench.core.units import format_number
from distbench.tables.table import Field, Table, TableCell, TableRow

if TYPE_CHECKING:
    # not needed by the registry, which reads this file to list views
    from distbench.analysis.case_summary import CaseSummary
    from distbench.analysis.run import RunAnalysis
    from distbench.core.case import Case
    from distbench.views.charts.figures import Chart

CASE_FIELDS = (
    Field("case_name", "case", "Name of the case, as in reports.", type="varchar"),
    Field("case_id", "", "Id of the case: a hash of everything that decides the work.", type="varchar"),
    Field("strategy", "", "Short name of the strategy with its options.", type="varchar"),
    Field("world_size", "", "Devices.", type="bigint"),
)
"""Columns that identify the case of a row."""
OPERATION = Field("op", "collective", "Operation that the strategy calls.", type="varchar")


@dataclass(frozen=True)
class CaseColumn(Field):
    """A column of a table whose rows are cases."""

    read: Callable[[CaseSummary], TableCell] | None = None
    """Cell of a case; None: the value of that name over its trials, or the reason why it has none."""

    def cell(self, row: CaseSummary) -> TableCell:
        """Cell of the case *row*."""
        return self.read(row) if self.read else value_cell(row, self.name)


@dataclass(frozen=True)
class View(ABC):
    """Table and charts of a run. Its word is the name of its file, or of its kind of job."""

    title: ClassVar[str]
    order: ClassVar[int] = 1000
    """Position of its chapter on the page; lower comes first."""
    caption: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]]
    """Columns of its table; programs get them even for a run without rows."""
    table_collapsed: ClassVar[bool] = True
    """True if the page collapses its table when there are charts, which show the same or its verdicts."""
    prints_table: ClassVar[bool] = False
    """True if paper has its table even so: its charts show less."""
    table_in_charts: ClassVar[bool] = False
    """True if its charts have its rows behind them, so the page needs no table."""

    collapsed: ClassVar[bool] = False
    """True if the page shows only heading and summary of its chapter until a reader opens it: background."""
    template: ClassVar[str] = "chapter.html"
    """File among the page's templates that renders its chapter."""

    compares_cases: ClassVar[bool] = False
    """True if it helps to choose a case: a run whose cases are no choice has no such chapter."""

    in_overview: ClassVar[bool] = False
    """For a kind of job: True if ``distbench show`` prints its table, not a line for each verdict."""

    @abstractmethod
    def table(self, run: RunAnalysis) -> Table:
        """Table of *run*; its notes give the reason for missing rows."""

    def charts(self, run: RunAnalysis) -> Iterable[Chart]:
        """Charts of *run*, above the table on the page."""
        return ()

    def content(self, run: RunAnalysis) -> Any:
        """Data for its own template besides charts and table."""
        return None

    def is_requested(self, run: RunAnalysis) -> bool:
        """True if *run* requested the data of the view, so a table without rows is worth showing."""
        return False

    def summary(self, run: RunAnalysis, table: Table) -> str:
        """Sentence with the numbers that matter, for a collapsed chapter; empty: findings of its charts."""
        return ""

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if its table or notes warn of something: the page then collapses neither."""
        return False

    def make_table(self, rows: Sequence[TableRow], notes: Sequence[str] = (), caption: str = "") -> Table:
        """Table with this view's title, caption and columns."""
        return Table(self.title, caption or self.caption, self.fields, tuple(rows), tuple(notes))

    def case_row(self, row: CaseSummary, shown: str = "") -> TableRow:
        """Row of a case: its identity, for people *shown*, and the cells of all ``CaseColumn``."""
        return TableRow({**case_cells(row.case, shown), **column_cells(self.fields, row)})


PLUGIN_BASE = View
HAS_OPTIONS = False
"""Views have no options; listing them must not import them, which would import scipy."""
HELPERS = ("charts",)
"""Modules of this folder that are shared code, not plug-ins."""


def case_cells(case: Case, shown: str = "") -> dict[str, TableCell | str | int]:
    """Cells of the columns ``CASE_FIELDS``; people read *shown* as the name."""
    return {
        "case_name": TableCell(case.name, shown),
        "case_id": case.id,
        "strategy": case.label,
        "world_size": case.world_size,
    }


RELATIVE_COLUMN = CaseColumn(
    "relative",
    "x ddp",
    "Over ddp at the same world size.",
    better="higher",
    format="{:.2f}".format,
    read=lambda row: TableCell(row.relative_throughput, reason=row.relative_absence),
)


def rate_column(
    name: str, heading: str, doc: str = "", unit: str = "", better: Better = "higher"
) -> CaseColumn:
    """Column of a rate, or of a price, with the digits that its interval supports."""
    return CaseColumn(name, heading, doc, unit, better, read=lambda row: rate_cell(row, name))


def column_cells(columns: Iterable[Field], row: CaseSummary) -> dict[str, TableCell]:
    """Cells of a case in those of *columns* that are of cases."""
    return {each.name: each.cell(row) for each in columns if isinstance(each, CaseColumn)}


def value_cell(row: CaseSummary, column: str) -> TableCell:
    """Cell of *column* over the trials of a case, or of the reason why it has none."""
    estimate = row.values.get(column)
    return (
        TableCell(None, reason=row.absence_reasons.get(column, ""))
        if estimate is None
        else TableCell(estimate.value)
    )


def rate_cell(row: CaseSummary, column: str) -> TableCell:
    """As ``value_cell``, with the digits that the interval of a rate, or of a price, supports."""
    cell = value_cell(row, column)
    return cell if cell.value is None else replace(cell, text=row.values[column].text)


def spread_cell(
    row: CaseSummary, column: str, text: Callable[[float, float], str] = format_number, digits: int = 0
) -> TableCell:
    """As ``value_cell``, with the text of ``estimate_text``."""
    return replace(value_cell(row, column), text=estimate_text(row, column, text, digits))


def absence_reasons(
    rows: Iterable[CaseSummary], columns: Iterable[str], names: Mapping[str, str]
) -> dict[tuple[str, str], list[str]]:
    """(Column, reason why it has no number) -> the cases of *rows*, by *names*, which are by case id."""
    return group_pairs(
        ((column, reason), names[row.case.id])
        for row in rows
        for column in columns
        if (reason := row.absence_reasons.get(column))
    )


def estimate_text(row: CaseSummary, column: str, text: Callable[[float, float], str], digits: int = 0) -> str:
    """*column* with half its interval, or else half the range of its trials; empty if absent.

    Args:
        text: Formats a value with half the width of its interval, 0 if it has none.
    """
    estimate = row.values.get(column)
    if estimate is None:
        return ""
    known = text(estimate.value, estimate.interval.half_width if estimate.interval else 0.0)
    return (
        known
        if estimate.relative_half_width is None
        else f"{known} ±{estimate.relative_half_width:.{digits}%}"
    )


def all_views() -> dict[str, View]:
    """Views by their words, in the order of the page."""
    known: dict[str, View] = {
        name: registry.load_plugin("views", name)() for name in registry.plugin_names("views")
    }
    parts = {
        name: registry.load_submodule_plugin("jobs", name, "view", View)
        for name in registry.plugin_names("jobs")
    }
    known |= {name: view() for name, view in parts.items() if view}
    return dict(sorted(known.items(), key=lambda item: (item[1].order, item[0])))
