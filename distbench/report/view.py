"""The seam of views: one analysed run becomes a sheet, charts, and a place on the page.

A view is a word of ``distbench show --view``, a chapter of the page and a table ``view_<word>`` of
``distbench query``. Those of kinds of job are in ``distbench/jobs/<kind>/view.py``, all others in
``distbench/views/<word>.py``; both are found by the registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from distbench.core import registry
from distbench.tables.table import Cell, Field, Row, Sheet

if TYPE_CHECKING:
    # the registry reads this file to list views, which needs none of these
    from distbench.analysis.case_summary import CaseSummary
    from distbench.analysis.run import AnalysedRun
    from distbench.core.case import Case
    from distbench.report.figures import Chart

CASE = (
    Field("case_name", "case", "Name of the case, as in reports.", type="varchar"),
    Field("case_id", "", "Id of the case: a hash of everything that decides the work.", type="varchar"),
    Field("strategy", "", "Short name of the strategy with its options.", type="varchar"),
    Field("world_size", "", "Devices.", type="bigint"),
)
"""Columns that say which case a row belongs to."""


@dataclass(frozen=True)
class View(ABC):
    """A view of a run. Its word is the name of its file, or of its kind of job."""

    title: ClassVar[str]
    place: ClassVar[int] = 1000
    """Place of its chapter on the page; lower comes first."""
    caption: ClassVar[str] = ""
    fields: ClassVar[tuple[Field, ...]]
    """Columns of its sheet, for programs also of a run for which it has no row."""
    folded: ClassVar[bool] = True
    """Whether the page folds its table away where it has charts: they say the same."""
    is_behind: ClassVar[bool] = False
    """Whether its charts have its rows behind them, so that the page needs no table of it."""

    template: ClassVar[str] = "chapter.html"
    """File among the page's templates that draws its chapter."""

    in_overview: ClassVar[bool] = False
    """Of a kind of job: whether ``distbench show`` prints its table, not a line for each verdict."""

    @abstractmethod
    def sheet(self, run: AnalysedRun) -> Sheet:
        """The table of *run*; its notes say why it has no rows."""

    def charts(self, run: AnalysedRun) -> Iterable[Chart]:
        """Charts of *run*, above the table on the page."""
        return ()

    def content(self, run: AnalysedRun) -> Any:
        """What a template of its own draws besides charts and table."""
        return None

    def is_asked(self, run: AnalysedRun) -> bool:
        """Whether *run* asked for what the view shows, so that a table without rows is news."""
        return False

    def made(self, rows: Sequence[Row], notes: Sequence[str] = (), caption: str = "") -> Sheet:
        """A sheet of this view's title, caption and columns."""
        return Sheet(self.title, caption or self.caption, self.fields, tuple(rows), tuple(notes))


PLUGIN_BASE = View
HAS_OPTIONS = False
"""They are listed without being imported, which would import scipy."""


def case_cells(case: Case, shown: str = "") -> dict[str, Cell | str | int]:
    """Cells of the columns ``CASE``; people read *shown* as its name."""
    return {
        "case_name": Cell(case.name, shown),
        "case_id": case.id,
        "strategy": case.label,
        "world_size": case.world_size,
    }


def measured_cell(row: CaseSummary, column: str) -> Cell:
    """Cell of *column* over the trials of a case, or of why there is none."""
    estimate = row.values.get(column)
    return Cell(None, reason=row.absent.get(column, "")) if estimate is None else Cell(estimate.value)


def rate_cell(row: CaseSummary, column: str) -> Cell:
    """As ``measured_cell``, with the digits that the interval of a rate, or of a price, allows."""
    cell = measured_cell(row, column)
    return cell if cell.value is None else replace(cell, text=row.values[column].text)


@dataclass(frozen=True)
class Chapter:
    """One section of the page: charts, and a table of everything behind them."""

    id: str
    title: str
    charts: Sequence[Chart]
    sheet: Sheet | None
    folded: bool = False
    """Whether the table is opened by who wants it."""
    behind: Sheet | None = None
    """All numbers of the view, also where the page has no table of them."""
    template: str = View.template
    content: Any = None
    """What the template draws besides charts and table."""


def views() -> dict[str, View]:
    """Views by their words, in the order of the page."""
    known: dict[str, View] = {name: registry.load("views", name)() for name in registry.names("views")}
    parts = {name: registry.part("jobs", name, "view", View) for name in registry.names("jobs")}
    known |= {name: view() for name, view in parts.items() if view}
    return dict(sorted(known.items(), key=lambda item: (item[1].place, item[0])))


def chapters(run: AnalysedRun) -> list[Chapter]:
    """The chapters that have something to show of *run*."""
    made = []
    for name, view in views().items():
        charts, sheet = [*view.charts(run)], view.sheet(run)
        if charts or sheet.rows or view.is_asked(run):
            shown = None if view.is_behind and charts else sheet
            folded = view.folded and bool(charts)
            content = view.content(run)
            made.append(Chapter(name, view.title, charts, shown, folded, sheet, view.template, content))
    return made
