"""Runs a gate: both arms side by side, a second series for flagged cases, one result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from distbench import plan
from distbench.analysis.job_results import job_results
from distbench.analysis.settings import differences, environment
from distbench.analysis.verdicts import perturbed_losses
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.core.units import count_text
from distbench.gate import columns, launch_failures, losses
from distbench.gate.arms import Arm
from distbench.gate.calibration import load, refuse_blind
from distbench.gate.case_matching import match
from distbench.gate.case_verdict import all_pairs, case_verdict, track_findings, without_efficiency
from distbench.gate.folder import GateFolder
from distbench.gate.series import Clock, Series, Slot, Track, tracks_of
from distbench.gate.verdicts import Result, is_flagged
from distbench.plan import PlannedTrial
from distbench.record import SECOND_SERIES, of_kind
from distbench.record.reading import rereading
from distbench.run import Bench, Deadline, Observer, Stopped, StopRequest, make_all, to_build

_NONE: launch_failures.Arms = launch_failures.Launches(), launch_failures.Launches()


class Gate:
    """A gate of a baseline and a candidate."""

    def __init__(
        self,
        out: Path,
        baseline: Arm,
        candidate: Arm,
        *,
        command: Sequence[str],
        resume: Path | None = None,
        calibrates: bool = False,
    ) -> None:
        """Plan both arms and create the folder, or open that of the gate to resume.

        Args:
            command: Command line that started the gate, which its runs record.
            resume: Folder of an interrupted gate of the same arms; its trials are not repeated.
            calibrates: Measure only the spread: tolerances are not checked and nothing is confirmed.

        Raises:
            SuiteError: the suite can't work, which is known before anything is launched.
            UsageError: the folder can't be created, or a tolerance is below what this machine can resolve.
        """
        self._arms, self._observer = (baseline, candidate), Observer()
        self._rules = candidate.suite.gate
        self._plans = plan.make(baseline.suite), plan.make(candidate.suite)
        self._match = match(*self._plans)
        self._calibrates = calibrates
        self.cases = [slot.candidate for slot in self._match.slots]
        """Cases run in pairs."""
        if not calibrates:
            refuse_blind(self._rules, self.cases, load(candidate.suite.measure))
        self._clock, self._command = Clock(self._rules.minutes), command
        self._folder = (
            GateFolder.resume(resume, self._arms)
            if resume
            else GateFolder.create(out, self._arms, self._plans, command)
        )
        self._failures = self._folder.failures

    def run(self, observer: Observer) -> Result:
        """Run both arms until each case has its verdict, and write the result to the folder.

        No other process may run trials in it meanwhile.

        Raises:
            UsageError: another process runs this gate.
            InfrastructureError: the disk is full; everything stored so far is intact.
            KeyboardInterrupt: a second Ctrl-C; no process is left.
        """
        self._observer = observer
        try:
            with self._folder.owned():
                return self._run()
        except InfrastructureError as error:
            advice = f"free some space, then resume with: {self.resume_command}"
            raise InfrastructureError(error.problem, advice) from error

    @property
    def resume_command(self) -> str:
        """Command that resumes this gate, ready to be pasted into a shell."""
        is_resumed = any(word.partition("=")[0] == "--resume" for word in self._command)
        return shlex.join([*self._command, *(() if is_resumed else ("--resume", str(self._folder.path)))])

    def _run(self) -> Result:
        stop = StopRequest()
        second: list[Track] = []
        self._folder.set_state("running")
        with stop.listening():
            first = self._series(self._match.slots, stop, is_second=False)
            flagged = [track for track in first if self._is_flagged(track)]
            if flagged and not (self._calibrates or stop.ends or self._clock.is_over):
                self._observer.note(f"{len(flagged)} flagged; a fresh series will confirm or clear them")
                second = self._series(_slots_to_repeat(flagged), stop, is_second=True)
            self._try_rounding(first, second, stop)
        self._folder.set_state("interrupted" if stop.ends else "finished")
        result = rereading(partial(self._result, first, second, stop.by))
        self._folder.write_result(result)
        return result

    def _is_flagged(self, track: Track) -> bool:
        flagged = any(map(is_flagged, track_findings(track, self._rules)))
        return flagged or (not track.failure and launch_failures.is_suspicious(track.launches))

    def _series(self, slots: list[Slot], stop: StopRequest, *, is_second: bool) -> list[Track]:
        """Tracks of a series of *slots*, run in fresh processes."""
        tolerances = [self._rules.of(slot.candidate.label, slot.candidate.name) for slot in slots]
        blocks = tracks_of(slots, efficiency=any(own.efficiency is not None for own in tolerances))
        sessions = [
            Bench.opened(run, arm.suite, self._observer, stop, arm.place)
            for run, arm in zip(self._folder.runs, self._arms, strict=True)
        ]
        with sessions[0] as baseline, sessions[1] as candidate:
            for bench, side in ((baseline, 0), (candidate, 1)):
                bench.prepare([slot[side] for slot in slots])
            if not is_second:
                self._side_by_side((baseline, candidate), stop)
                self._required_jobs(candidate, stop)
            series = Series(
                (baseline, candidate),
                self._rules,
                self._observer,
                stop,
                self._clock,
                self._failures,
            )
            # rounds of its own: a resumed gate with more pairs would take others for those of the first
            first_round = SECOND_SERIES if is_second else 0
            series.run(blocks, first_round=first_round, candidate_first=is_second)
        return [track for block in blocks for track in block]

    def _side_by_side(self, benches: tuple[Bench, Bench], stop: StopRequest) -> None:
        """Make the trials of other kinds of job whose columns are compared: a pair in each round.

        Every second pair begins with the candidate.
        """
        tasks = [[task for task in made.trials if task.job.kind in self._compared] for made in self._plans]
        for bench, of in zip(benches, tasks, strict=True):
            bench.prepare(to_build(of))
        deadline = Deadline()
        mates = {(task.job.kind, task.case.name, task.round): task for task in tasks[0]}
        for own in tasks[1]:
            mate = mates.get((own.job.kind, own.case.name, own.round))
            pair = [(benches[0], mate), (benches[1], own)] if mate else []
            for bench, task in pair if own.round % 2 == 0 else pair[::-1]:
                if task and bench.found(task) is None and not deadline.ends(stop, self._observer, None):
                    self._observer.trial_started(task, 0, 1, None)
                    self._observer.trial_ended(bench.make(task))

    @property
    def _compared(self) -> dict[str, float]:
        """Words of the kinds of job whose columns are compared -> allowed worsening."""
        known = job_results()
        if self._calibrates:
            return {}
        return {known[kind].kind.name: limit for kind, limit in self._rules.columns.items()}

    def _required_jobs(self, candidate: Bench, stop: StopRequest) -> None:
        """Run the candidate's checks and trainings that the rules require."""
        known = job_results()
        words = {known[kind].kind.name for kind in self._rules.demands}
        tasks = [task for task in self._plans[1].trials if task.job.kind in words]
        self._make(candidate, tasks, stop)

    def _try_rounding(self, first: list[Track], second: list[Track], stop: StopRequest) -> None:
        """Try how far rounding leads the baseline, where losses part further than it usually does.

        Also when ``gate.minutes`` are over: one trial decides whether the case fails.
        """
        repeated = {track.slot.candidate.id: track for track in second}
        doubted = [
            track.slot.baseline
            for track in first
            if losses.is_doubted(all_pairs(track, repeated.get(track.slot.candidate.id)), self._rules.loss)
        ]
        arm = self._arms[0]
        jobs = arm.suite.jobs.items()
        tasks = [task for word, section in jobs for task in job_kind(word).perturbed_trials(section, doubted)]
        if stop.ends or not tasks:
            return
        cases = count_text(len(doubted), "case")
        self._observer.note(f"the losses part in {cases}; trying how far rounding leads the baseline")
        with Bench.opened(self._folder.runs[0], arm.suite, self._observer, stop, arm.place) as baseline:
            self._make(baseline, tasks, stop)

    def _make(self, bench: Bench, tasks: list[PlannedTrial], stop: StopRequest) -> None:
        """Make those *tasks* that no earlier session has made."""
        if todo := [task for task in tasks if bench.found(task) is None]:
            bench.prepare(to_build(todo))
            make_all(bench, todo, self._observer, stop, Deadline())

    def _result(self, first: list[Track], second: list[Track], stopped: Stopped) -> Result:
        runs = self._folder.analysed()
        before, after = ({row.case.id: row for row in run.cases} for run in runs)
        perturbed = perturbed_losses(runs[0].records)
        repeated = {track.slot.candidate.id: track for track in second}
        unreliable = launch_failures.findings(
            {track.slot.candidate.name: _launches(track, repeated) for track in first}
        )
        cases = [
            case_verdict(
                track,
                repeated.get(track.slot.candidate.id),
                (before, after),
                self._rules,
                perturbed=perturbed.get(track.slot.baseline.id, ()),
                launches=unreliable.get(track.slot.candidate.name),
                confirms=not self._calibrates,
            )
            for track in first
        ]
        others = [
            verdict
            for word, limit in self._compared.items()
            for verdict in columns.compared(word, limit, *(of_kind(run.records, word) for run in runs))
        ]
        order = {item.case.name: i for i, item in enumerate(self._plans[1].cases)}
        return Result(
            gate_id=self._folder.gate_id,
            suite=self._arms[1].suite.name,
            baseline=self._arms[0].title,
            candidate=self._arms[1].title,
            cases=tuple(
                sorted(
                    [*cases, *self._match.verdicts, *others],
                    key=lambda case: order.get(case.case, len(order)),
                )
            ),
            environment=differences(*(environment(run.records, run.info.machine) for run in runs)),
            skipped=self._match.skipped,
            notes=without_efficiency(first, self._rules),
            minutes=round(self._clock.spent, 2),
            stopped=stopped,
            folder=str(self._folder.path),
        )


def _launches(track: Track, repeated: Mapping[str, Track]) -> launch_failures.Arms:
    """Launches of a case in both series."""
    again = repeated.get(track.slot.candidate.id)
    (before, after), (more_before, more_after) = track.launches, again.launches if again else _NONE
    return before + more_before, after + more_after


def _slots_to_repeat(flagged: list[Track]) -> list[Slot]:
    """Slots of the second series: the flagged cases and their one-device bases."""
    slots = {track.slot.candidate.id: track.slot for track in flagged}
    slots |= {track.base.slot.candidate.id: track.base.slot for track in flagged if track.base}
    return list(slots.values())
