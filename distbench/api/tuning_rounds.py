"""Decide which cases of a grid to measure, by the rates of the run's own probe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.choice import Candidate
from distbench.analysis.prospects import TuningCase, promising_cases, unsettled_cases
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.core.measurement import MeasureConfig
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_count
from distbench.prediction.cases import CasePrediction
from distbench.record import Status
from distbench.record.run_folder import Run
from distbench.run import Observer


class TuningRounds:
    """Called with the run after each round: ids of the cases to measure next; none: the rest can't win."""

    def __init__(self, observer: Observer, end: float, memory: float | None, measure: MeasureConfig) -> None:
        """Rounds until *end* at the latest, a time of the monotonic clock.

        Args:
            memory: Bytes that a case may take on a device; None: any.
            measure: Trials of each case that is close to the fastest.
        """
        self._observer, self._end, self._memory, self._measure = observer, end, memory, measure

    def __call__(self, run: Run) -> list[str]:
        """Cases to measure next."""
        analysed = RunAnalysis.read(run)
        prospects, too_large = self.prospects(analysed)
        chosen = promising_cases(prospects) or unsettled_cases(prospects, self._measure)
        if chosen and time.monotonic() < self._end:
            return [case.id for case in chosen]
        if chosen:
            self._observer.note(f"the time is up (--minutes): {_names(chosen)} may still be the fastest")
        else:
            left = [one.case for one in prospects if not one.trials]
            self._note("can't be the fastest by prediction", left)
        if self._memory is not None:
            room = format_bytes(self._memory)
            self._note(f"left out, by prediction larger than {room} (--memory)", too_large)
        return []

    def prospects(self, run: RunAnalysis) -> tuple[list[TuningCase], list[Case]]:
        """Cases of *run* that can run here, and those among them that by prediction need too much memory."""
        trials = Counter(
            record.case_id for record in run.timed_records if record.status is not Status.CANCELLED
        )
        candidates, found = {one.id: one for one in run.candidates}, run.predictions
        rows = [row for row in run.cases if row.status != Status.UNSUPPORTED]
        too_large = [row.case for row in rows if self._is_too_large(found.get(row.case.id))]
        return [
            self._tuning_case(row, candidates[row.case.id], found.get(row.case.id), trials[row.case.id])
            for row in rows
            if row.case not in too_large
        ], too_large

    def _tuning_case(
        self, row: CaseSummary, candidate: Candidate, found: CasePrediction | None, trials: int
    ) -> TuningCase:
        speed = row.values.get(THROUGHPUT)
        fits = self._memory is None or candidate.memory is None or candidate.memory <= self._memory
        # what can't be recommended is no reason to leave out others
        is_eligible = fits and (candidate.is_noisy or not candidate.exclusion_reason)
        measured = speed.value if speed and row.measured and is_eligible else None
        if found is None or isinstance(found.step, str):
            return TuningCase(row.case, None, False, measured, trials, row.trials - row.degraded_trials)
        quiet, is_bound = row.trials - row.degraded_trials, bool(found.step.unpredicted_part)
        return TuningCase(row.case, found.tokens_per_s, is_bound, measured, trials, quiet)

    def _is_too_large(self, found: CasePrediction | None) -> bool:
        if self._memory is None or found is None or isinstance(found.memory, str):
            return False
        return found.memory.peak.low > self._memory

    def _note(self, why: str, cases: Sequence[Case]) -> None:
        if cases:
            self._observer.note(f"{format_count(len(cases), 'case')} {why}: {_names(cases)}")


def _names(cases: Sequence[Case]) -> str:
    return join_limited([case.name for case in cases], limit=6)
