"""A stored run in Python: its cases, tables, figures, recommendation and comparison with another run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import DEFAULT_MAX_SLOWDOWN, DEFAULT_TIE_MARGIN
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.recommendation import recommend
from distbench.api.comparison import Comparison, StoredRun, compare_stored
from distbench.api.frames import check_form, query_frame
from distbench.api.pick import Pick, pick_case
from distbench.api.stored_runs import damage_lines
from distbench.core.errors import RecordContentError, UsageError, did_you_mean
from distbench.core.units import format_count
from distbench.query import Database
from distbench.record import Record, catalog
from distbench.record.record_reader import retry_eagerly, untrusted_records
from distbench.record.run_folder import Run
from distbench.report import page
from distbench.report.fragment import fragment
from distbench.report.overview import overview_table
from distbench.system.garbage_collection import paused_collection
from distbench.views.charts.pairs import chosen_cases

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from distbench.views.charts.figures import Chart

T = TypeVar("T")


class RunResults:
    """A run as its folder was when it was read; ``load`` it again to see later trials."""

    def __init__(self, stored: Run) -> None:
        """Read the run in the folder *stored*.

        Raises:
            UsageError: this is not the folder of a run.
            RecordError: neither ``run.json`` nor a record can be read.
        """
        self._stored = stored
        self._answer(lambda run: run.info)

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._stored.folder

    @cached_property
    def analysis(self) -> RunAnalysis:
        """All that is derived from the records; its parts may change from version to version.

        Trials that can't be read are warned of, and no number includes them.
        """
        analysed = RunAnalysis.read(self._stored)
        for line in damage_lines(analysed.damaged, self.folder):
            warnings.warn(line, stacklevel=2)
        return analysed

    @property
    def records(self) -> Sequence[Record]:
        """Records of all trials."""
        return self.analysis.records

    @property
    def cases(self) -> tuple[CaseSummary, ...]:
        """Summary of each case, in the order of the suite.

        ``case.values["tokens_per_s"]`` has ``value``, ``low`` and ``high`` in the unit that
        ``case.columns["tokens_per_s"]`` tells; ``case.absence_reasons`` tells why a number is missing.
        """
        return self._answer(lambda run: run.cases)

    def case(self, name: str) -> CaseSummary:
        """Find the case with that name, or with that label if only one case has it.

        Raises:
            UsageError: no case matches, or several have the label.
        """
        for called in ("name", "label"):
            matches = [row for row in self.cases if getattr(row.case, called) == name]
            if len(matches) == 1:
                return matches[0]
        known = [text for row in self.cases for text in (row.case.name, row.case.label)]
        raise UsageError(f"no single case has the name or label {name!r}; {did_you_mean(name, set(known))}")

    @property
    def tables(self) -> list[str]:
        """Names of its tables, those of ``distbench query``."""
        return [table.name for table in self._answer(lambda _: self._database.tables())]

    def table(self, name: str, as_: str | None = None) -> Any:
        """A table of ``distbench query``, such as ``cases``, ``trials``, ``steps`` or ``view_memory``.

        Columns have the units that ``distbench query --tables`` prints: seconds, bytes, tokens/s. An absent
        value is null.

        Args:
            name: One of ``tables``.
            as_: ``pandas``, ``polars``, ``arrow``, or ``records`` for a list of mappings; None: the first of
                pandas, polars and Arrow that is installed.

        Raises:
            UsageError: no such table or form, or the library of the form is not installed.
            RecordError: the records are inconsistent.
        """
        form, known = check_form(as_), self.tables
        if name not in known:
            raise UsageError(f"no table {name!r}; {did_you_mean(name, known)}")
        return query_frame(self._answer(lambda _: self._database.query(f'select * from "{name}"')), form)

    @property
    def figures(self) -> list[str]:
        """Names of the charts of its report."""
        return list(self._charts)

    def figure(self, name: str) -> Figure:
        """A chart of the report as a figure of plotly; axes have their units in their titles.

        Raises:
            UsageError: the report has no such chart.
            RecordError: the records are inconsistent.
        """
        if name not in self._charts:
            hint = did_you_mean(name, self._charts) if self._charts else "this run has no charts yet"
            raise UsageError(f"figure {name!r}: {hint}")
        from plotly.graph_objects import Figure

        chart = self._charts[name]
        return Figure(chosen_cases(chart.figure)).update_layout(
            title={"text": chart.title}, height=chart.pixels
        )

    def pick(
        self,
        *,
        goal: str = "throughput",
        memory: str | float | None = None,
        devices: int | None = None,
        precision: str | None = None,
        work: str | None = None,
        avoid: str | Sequence[str] = (),
        within: str | float = DEFAULT_MAX_SLOWDOWN,
        margin: str | float = DEFAULT_TIE_MARGIN,
    ) -> Pick:
        """Recommend a case, as ``distbench pick`` does.

        Args:
            goal: ``throughput``, ``memory`` or ``tokens-per-joule``.
            memory: Memory per device: ``"24GiB"``, or a number of bytes; None: no limit.
            devices: Number of devices; None: the largest measured.
            precision: ``fp32``, ``bf16`` and so on; None, as for *work*: that of most cases.
            work: Model and data, if the run has several.
            avoid: Globs of strategies to exclude.
            within: With the goal ``memory``: accepted slowdown, as a fraction or as ``"10%"``.
            margin: Of tied cases, choose the simplest within this fraction of the best.

        Raises:
            UsageError: an argument is invalid, or no case of the run has such a value.
            RecordError: the records are inconsistent.
        """
        wishes: dict[str, Any] = {"precision": precision, "work": work, "within": within, "margin": margin}
        return self._answer(
            lambda run: pick_case(run, goal=goal, memory=memory, devices=devices, avoid=avoid, **wishes)
        )

    def compare(self, other: RunResults | str | os.PathLike[str]) -> Comparison:
        """Compare *other*, a later run or its folder or ID, with this one case by case.

        Other runs next to this one give the variance between runs.

        Raises:
            UsageError: there is no such run.
            RecordError: it can't be read, or the records are inconsistent.
        """
        later = other if isinstance(other, RunResults) else load(other, out=self.folder.parent)
        (result,) = self._answer(
            lambda _: compare_stored(
                self._analysed, [later._analysed], {self.folder.parent}, _warn_of_comparison
            ),
            later,
        )
        return Comparison(result)

    def __repr__(self) -> str:
        info = self.analysis.info
        cases = format_count(len(self.cases), "case")
        return f"<distbench.Run {info.run_id} of {info.suite_name}: {cases}, {info.state}>"

    def _repr_html_(self) -> str:
        best = self._answer(recommend)
        return fragment(self._answer(overview_table), [best.headline, *best.reasons])

    @cached_property
    def _charts(self) -> dict[str, Chart]:
        return self._answer(page.charts)

    @cached_property
    def _database(self) -> Database:
        return Database([self._stored])

    @property
    def _analysed(self) -> StoredRun:
        return StoredRun(self.folder, self.analysis)

    def _answer(self, ask: Callable[[RunAnalysis], T], *others: RunResults) -> T:
        """Result of *ask*; if a file then turns out to be damaged, this run and *others* are read again."""

        def attempt() -> T:
            try:
                return ask(self.analysis)
            except RecordContentError:
                for run in (self, *others):
                    for derived in ("analysis", "_database"):
                        vars(run).pop(derived, None)
                raise

        with untrusted_records(f"the records in {self.folder}"), paused_collection():
            return retry_eagerly(attempt)


def load(path: str | os.PathLike[str], *, out: str | os.PathLike[str] = "reports") -> RunResults:
    """Read a stored run.

    Args:
        path: Its folder, or the start of its ID or of its name.
        out: Folder that holds the runs, for an ID or a name.

    Raises:
        UsageError: no run matches, or more than one.
        RecordError: neither ``run.json`` nor a record can be read.
    """
    return RunResults(catalog.find_run(os.fspath(path), Path(out)))


def _warn_of_comparison(text: str) -> None:
    warnings.warn(text, stacklevel=2)
