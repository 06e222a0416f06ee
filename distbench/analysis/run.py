"""Analysed run: all results derived from a run's records, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from distbench.analysis.candidates import make_candidates, noise_by_device_count
from distbench.analysis.case_aggregation import summarize_cases
from distbench.analysis.case_names import short_names
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import Candidate, Requirements, Selection, select_case
from distbench.analysis.cost import device_cost
from distbench.analysis.inter_node import InterNodeBottleneck, inter_node_bottlenecks
from distbench.analysis.parity import Parity
from distbench.analysis.ranks import Straggler, stragglers
from distbench.analysis.readable_cases import unreadable_reason
from distbench.analysis.scaling import ScalingSeries, scaling_series
from distbench.analysis.statistics.intervals import Noise
from distbench.analysis.step_limits import StepLimit, step_limit
from distbench.core.case import Case
from distbench.core.errors import UsageError
from distbench.core.job import MEASURE
from distbench.prediction.cases import CasePrediction, predict_from_probe
from distbench.prediction.probed_rates import PROBE
from distbench.record import Record, records_of_kind
from distbench.record.record_reader import DamagedTrial
from distbench.record.run_folder import Run, RunInfo
from distbench.record.run_rebuild import describe_run
from distbench.suite.cost import DeviceCost

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class RunAnalysis:
    """A run with everything that pages, tables, gates and queries read from it."""

    info: RunInfo
    records: Sequence[Record]
    """Records of all kinds of job."""
    damaged: Sequence[DamagedTrial] = ()
    """Unreadable trials, which no number includes, and ``run.json`` if it can't be read."""

    @classmethod
    def read(cls, run: Run) -> RunAnalysis:
        """Read the run in a folder; its damaged trials are only in ``damaged``.

        Raises:
            UsageError: this is not the folder of a run.
            RecordError: neither ``run.json`` nor a record can be read.
        """
        contents = run.contents()
        return cls(describe_run(run, contents), contents.records, contents.damaged)

    @cached_property
    def cases(self) -> tuple[CaseSummary, ...]:
        """Summary of each case, in the order of the suite."""
        return tuple(summarize_cases(self.info, self.records, self.damaged))

    @property
    def verdict_kinds(self) -> list[str]:
        """Kinds of the verdicts that any case has."""
        return list(dict.fromkeys(kind for row in self.cases for kind in row.verdicts))

    @cached_property
    def timed_records(self) -> list[Record]:
        """Records of timed trials."""
        return records_of_kind(self.records, MEASURE)

    @cached_property
    def parity(self) -> Parity:
        """Differences in effective settings among the cases."""
        return Parity.of(self.cases)

    @cached_property
    def scaling(self) -> list[ScalingSeries]:
        """Throughput of each strategy over numbers of devices."""
        return scaling_series(self.cases)

    @cached_property
    def stragglers(self) -> list[Straggler]:
        """Ranks and nodes that the others wait for over trials, more often than by chance."""
        return stragglers(self.timed_records)

    @cached_property
    def inter_node_bottlenecks(self) -> dict[str, InterNodeBottleneck]:
        """Cases limited by the inter-node link, by case id."""
        return inter_node_bottlenecks(self.cases)

    @cached_property
    def step_limits(self) -> list[tuple[CaseSummary, StepLimit | str]]:
        """Limit of the steps of each measured case, or the reason why it is unknown."""
        if self.info.is_trace:
            # its table of losses tells the causes of idle time, which a step limit knows only the sum of
            return []
        return [(row, step_limit(row)) for row in self.cases if row.measured]

    @cached_property
    def predictions(self) -> dict[str, CasePrediction]:
        """Prediction of each case from the probe of the run, by case id; empty: it has no probe."""
        every = records_of_kind(self.records, PROBE)
        probes = [record for record in every if not unreadable_reason(record.case)]
        return {row.case.id: _prediction(row.case, probes) for row in self.cases if every}

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The cases as candidates of a choice."""
        return make_candidates(self.cases, self.parity.findings, self.predictions)

    @cached_property
    def selection(self) -> Selection:
        """The choice among all candidates without further requirements."""
        return select_case(self.candidates, Requirements())

    @cached_property
    def device_cost(self) -> DeviceCost | None:
        """Price of a device; None if unknown.

        Raises:
            RecordError: the price in the suite is not of the right type.
        """
        return device_cost(self.info.suite)

    @cached_property
    def noise_by_device_count(self) -> dict[int, Noise]:
        """Noise of throughput by number of devices."""
        return noise_by_device_count(self.cases)

    def cases_with_evidence(self, kind: type[T]) -> list[tuple[CaseSummary, T]]:
        """Cases with a verdict that rests on a *kind* of evidence, each with that evidence."""
        return [(row, evidence) for row in self.cases if (evidence := row.evidence(kind))]

    def short_names(self, rows: Sequence[CaseSummary]) -> dict[str, str]:
        """Short names of *rows* by case id, with the marks of their parity footnotes."""
        marks, names = self.parity.footnotes.marks, short_names([row.case for row in rows])
        return {case_id: name + marks.get(case_id, "") for case_id, name in names.items()}


def _prediction(case: Case, probes: Sequence[Record]) -> CasePrediction:
    if reason := unreadable_reason(case):
        return CasePrediction(case, reason, reason)
    try:
        return predict_from_probe(case, None, probes)
    except UsageError as error:
        reason = f"no prediction: {error}"
        return CasePrediction(case, reason, reason)
