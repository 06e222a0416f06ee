"""Runs a gate: two arms of a suite side by side, a second series for what is flagged, one result."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distbench import env, plan
from distbench.analysis.comparison import settings_apart
from distbench.analysis.environment import differences, environment
from distbench.analysis.summary import CaseSummary, summarise
from distbench.analysis.text import listed, one_line
from distbench.case import Case
from distbench.errors import InfrastructureError, UsageError
from distbench.gate.arms import Arm
from distbench.gate.calibration import load, refuse_blind
from distbench.gate.causes import cause
from distbench.gate.confirming import confirmed, is_flagged, unconfirmed
from distbench.gate.demands import demanded
from distbench.gate.judging import findings
from distbench.gate.matching import match, trial
from distbench.gate.pairs import Pairs
from distbench.gate.series import Clock, Series, Slot, Track, tracks_of
from distbench.gate.verdicts import CaseVerdict, Finding, Result, Word
from distbench.plan import Planned
from distbench.record import SECOND_SERIES, Record, Status, read_json
from distbench.run import Bench, Observer, StopRequest
from distbench.spec.gate import Tolerances
from distbench.store import Run, RunInfo, new_run_id, stamp_of, utc_now, write_json

RESULT_FILE = "gate.json"
_ARMS_FILE = "arms.json"


class Gate:
    """One gate in its folder."""

    def __init__(
        self,
        out: Path,
        baseline: Arm,
        candidate: Arm,
        observer: Observer,
        *,
        resume: Path | None = None,
        calibrates: bool = False,
    ) -> None:
        """Plan both arms and make the folder.

        Args:
            resume: Folder of a gate of the same arms that was stopped: what it has made is not made again.
            calibrates: Only the spread is wanted: any tolerance will do, and nothing is confirmed.

        Raises:
            SuiteError: what can't work, known before anything is launched.
            UsageError: the folder can't be made, or a tolerance is below what this machine can resolve.
        """
        self._arms, self._observer = (baseline, candidate), observer
        self._rules = candidate.suite.gate
        self._plans = [plan.make(arm.suite, env.detect(arm.suite.device)) for arm in self._arms]
        self._match = match(*self._plans)
        self._calibrates = calibrates
        self.cases = [slot.candidate for slot in self._match.slots]
        """What is run in pairs."""
        if not calibrates:
            refuse_blind(self._rules, self.cases, load(candidate.suite.measure))
        self._clock = Clock(self._rules.minutes)
        # absolute, for processes are started from other folders
        name = f"gate-{stamp_of(utc_now())}-{new_run_id()}"
        self.folder = (resume or out / name).resolve()
        self.gate_id = self.folder.name.rpartition("-")[2]
        self._runs = self._resumed_runs(resume) if resume else self._made_runs()

    def _made_runs(self) -> tuple[Run, Run]:
        baseline, candidate = (
            _run(self.folder / name, arm, made.cases)
            for name, arm, made in zip(("baseline", "candidate"), self._arms, self._plans, strict=True)
        )
        write_json(self.folder / _ARMS_FILE, self._told())
        return baseline, candidate

    def _resumed_runs(self, name: Path) -> tuple[Run, Run]:
        """Return the runs of the gate that goes on.

        Raises:
            UsageError: it is no gate, or one of other arms.
        """
        if not (self.folder / _ARMS_FILE).is_file():
            raise UsageError(f"--resume {name}: no gate here ({_ARMS_FILE} is missing)")
        runs = Run(self.folder / "baseline"), Run(self.folder / "candidate")
        begun = [read_json(self.folder / _ARMS_FILE), *(_work(run.info().suite) for run in runs)]
        if begun != [self._told(), *(_work(arm.suite.resolved()) for arm in self._arms)]:
            raise UsageError(
                f"--resume {name}: was begun with other arms ({one_line(str(begun[0]))}) or another suite; "
                f"give the command that began it: {' '.join(runs[0].info().command)}"
            )
        return runs

    def _told(self) -> dict[str, str]:
        baseline, candidate = self._arms
        return {"baseline": baseline.told, "candidate": candidate.told}

    def run(self) -> Result:
        """Run both arms until each case has its verdict, and leave the result in the folder.

        Raises:
            InfrastructureError: the disk is full; what was stored is whole.
            KeyboardInterrupt: a second Ctrl-C; no process is left.
        """
        try:
            return self._run()
        except InfrastructureError as error:
            what = str(error).partition(" Make room")[0]
            raise InfrastructureError(f"{what} Make room, then go on with --resume {self.folder}") from error

    def _run(self) -> Result:
        stop = StopRequest()
        first: list[Track] = []
        second: dict[str, Track] = {}
        with stop.listening():
            self._series(first, self._match.slots, stop, is_second=False)
            flagged = [] if self._calibrates else self._flagged(first)
            if flagged and not stop.asked and not self._clock.is_over:
                self._observer.note(f"{len(flagged)} flagged; a fresh series will confirm or clear")
                again: list[Track] = []
                self._series(again, self._again(flagged), stop, is_second=True)
                second = {track.slot.candidate.id: track for track in again}
        for run in self._runs:
            run.write_info(dataclasses.replace(run.info(), state="interrupted" if stop.asked else "finished"))
        result = self._result(first, second, interrupted=stop.asked)
        write_json(self.folder / RESULT_FILE, result.to_json())
        return result

    def _series(self, into: list[Track], slots: list[Slot], stop: StopRequest, *, is_second: bool) -> None:
        """Run a series of *slots* with processes of its own, into new tracks."""
        efficiency = any(self._own(slot.candidate).efficiency is not None for slot in slots)
        blocks = tracks_of(slots, efficiency=efficiency)
        into += [track for block in blocks for track in block]
        sessions = [
            Bench.opened(run, arm.suite, self._observer, stop, arm.place)
            for run, arm in zip(self._runs, self._arms, strict=True)
        ]
        with sessions[0] as baseline, sessions[1] as candidate:
            for bench, side in ((baseline, 0), (candidate, 1)):
                bench.prepare([slot.cases[side] for slot in slots])
            if not is_second:
                self._extra(candidate, stop)
            series = Series((baseline, candidate), self._rules, self._observer, stop, self._clock)
            # not the round after the last: a gate that goes on with more pairs would take these for them
            first_round = SECOND_SERIES if is_second else 0
            series.run(blocks, first_round=first_round, candidate_first=is_second)

    def _extra(self, candidate: Bench, stop: StopRequest) -> None:
        """Make the candidate's checks and trainings, where they are required."""
        kinds = {"check": self._rules.equivalence, "converge": self._rules.convergence}
        wanted = [task for task in self._plans[1].trials if kinds.get(task.job.kind) == "required"]
        if wanted:
            candidate.prepare([case for task in wanted for case in (task.case, *task.instead)])
        for done, task in enumerate(wanted):
            if stop.asked:
                return
            if candidate.found(task) is None:
                self._observer.trial_started(task, done, len(wanted), None)
                self._observer.trial_ended(candidate.make(task))

    def _flagged(self, tracks: list[Track]) -> list[Track]:
        return [track for track in tracks if any(map(is_flagged, self._findings(track)))]

    def _again(self, flagged: list[Track]) -> list[Slot]:
        """Return the slots of a fresh series: what was flagged, and the same on one device."""
        slots = {track.slot.candidate.id: track.slot for track in flagged}
        slots |= {track.base.slot.candidate.id: track.base.slot for track in flagged if track.base}
        return list(slots.values())

    def _findings(self, track: Track) -> list[Finding]:
        if track.failure:
            return [_failed(track.failure)]
        if not track.pairs:
            return [trial("inconclusive", "no pair of trials was made in the time given")]
        case = track.slot.candidate
        return findings(track.measured(), self._rules, self._own(case))

    def _result(self, first: list[Track], second: dict[str, Track], *, interrupted: bool) -> Result:
        told = [self._summaries(side) for side in (0, 1)]
        cases = [
            *(self._verdict(track, second.get(track.slot.candidate.id), told) for track in first),
            *self._match.verdicts,
        ]
        order = {item.case.name: i for i, item in enumerate(self._plans[1].cases)}
        return Result(
            gate_id=self.gate_id,
            suite=self._arms[1].suite.name,
            baseline=self._arms[0].told,
            candidate=self._arms[1].told,
            cases=tuple(sorted(cases, key=lambda case: order.get(case.case, len(order)))),
            environment=self._environment(),
            skipped=self._match.skipped,
            notes=self._unjudged(first),
            minutes=round(self._clock.spent, 2),
            state="interrupted" if interrupted else "finished",
            folder=str(self.folder),
        )

    def _verdict(
        self, track: Track, again: Track | None, told: Sequence[dict[str, CaseSummary]]
    ) -> CaseVerdict:
        case = track.slot.candidate
        mine = self._findings(track)
        first: tuple[Finding, ...] = ()
        if again is not None and (again.pairs or again.failure):
            first, mine = tuple(mine), confirmed(mine, self._findings(again))
        elif not self._calibrates:
            mine = [unconfirmed(one) for one in mine]
        before, after = told[0].get(track.slot.baseline.id), told[1].get(case.id)
        work, notes = settings_apart(before, after) if before and after else ("", ())
        if work:
            mine = [trial("incomparable", work)]
        mine += demanded(after, self._rules)
        by_name = {one.metric: one for one in mine}
        # the series that the finding on the pace is from: a loss of pace is told by the second
        alone = again.base if again and again.base and again.base.pairs else track.base
        base = {one.metric: one for one in self._findings(alone)} if alone else {}
        pairs = [*track.pairs, *(again.pairs if again else [])]
        return CaseVerdict(
            case=case.name,
            label=case.label,
            world_size=case.world_size,
            findings=tuple(mine),
            cause=cause(by_name.get("tokens_per_s"), base.get("tokens_per_s"), pairs),
            notes=(*notes, *_disturbed(pairs)),
            minutes_per_pair=track.measured().minutes_per_pair,
            first=first,
        )

    def _unjudged(self, tracks: list[Track]) -> tuple[str, ...]:
        """Return of which cases no efficiency is told although there is a rule for it."""
        cases = [track.slot.candidate for track in tracks if track.base is None]
        alone = [
            case.name for case in cases if case.world_size > 1 and self._own(case).efficiency is not None
        ]
        if not alone:
            return ()
        why = "the suite has no such case on one device (world_sizes: [1, ...])"
        return (f"No scaling efficiency of {listed([one_line(name) for name in alone])}: {why}.",)

    def _own(self, case: Case) -> Tolerances:
        return self._rules.of(case.label, case.name)

    def _summaries(self, side: int) -> dict[str, CaseSummary]:
        run = self._runs[side]
        return {row.case.id: row for row in summarise(run.info(), list(run.records()))}

    def _environment(self) -> dict[str, tuple[str, str]]:
        told = []
        for run, arm in zip(self._runs, self._arms, strict=True):
            told.append(environment(list(run.records()), dict(arm.machine)))
        return differences(*told)


def _work(suite: dict[str, Any]) -> dict[str, Any]:
    """Return a resolved suite without its rules: those may be others when a gate goes on."""
    return {key: value for key, value in suite.items() if key != "gate"}


def _disturbed(pairs: Pairs) -> list[str]:
    """Return how many trials ran on a disturbed machine: both arms may, and the interval is wider by it."""
    found = [record.degraded for pair in pairs for record in pair if record.degraded]
    if not found:
        return []
    return [f"{len(found)} of {2 * len(pairs)} trials ran on a disturbed machine, as {one_line(found[0])}"]


def _failed(failure: tuple[Record | None, Record | None]) -> Finding:
    baseline, candidate = failure
    if candidate is None:
        assert baseline is not None
        return trial("incomparable", f"the baseline ended twice as {_ending(baseline)}")
    word: Word = "invalid" if candidate.status is Status.INVALID_NAN else "broken"
    return trial(word, f"runs in the baseline and ended twice as {_ending(candidate)}")


def _ending(record: Record) -> str:
    return f"{record.status}: {one_line(record.reason)}"


def _run(folder: Path, arm: Arm, cases: list[Planned]) -> Run:
    info = RunInfo.begun(arm.suite, cases, ["distbench", *sys.argv[1:]], arm.machine)
    return Run.made_at(folder, info, arm.suite.text)
