"""Run a gate: both arms side by side, a second series for flagged cases, one result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from distbench import plan
from distbench.analysis.job_results import job_results
from distbench.analysis.settings import fact_differences, merge_environments
from distbench.analysis.verdicts import perturbed_losses
from distbench.core.errors import InfrastructureError
from distbench.core.job import job_kind
from distbench.core.units import format_count
from distbench.gate import columns, launch_failures, losses
from distbench.gate.arms import GateArm
from distbench.gate.calibration import check_resolution, load_calibrations
from distbench.gate.case_matching import match_cases
from distbench.gate.case_verdict import (
    case_verdict,
    missing_efficiency_note,
    pairs_of_both_series,
    track_findings,
    unchanged_note,
)
from distbench.gate.code_changes import unread_changes
from distbench.gate.folder import GateFolder
from distbench.gate.series import CaseSlot, CaseTrack, GateTimer, PairSeries, make_tracks
from distbench.gate.verdicts import GateResult, is_flagged
from distbench.plan import PlannedTrial
from distbench.record import SECOND_SERIES_START, records_of_kind
from distbench.record.record_reader import retry_eagerly
from distbench.run import (
    AllocationTimeLimit,
    Observer,
    StopReason,
    StopRequest,
    TrialRunner,
    cases_to_build,
    run_follow_ups,
    run_trials,
)

_NO_LAUNCHES: launch_failures.LaunchCountsByArm = (
    launch_failures.LaunchCounts(),
    launch_failures.LaunchCounts(),
)


class Gate:
    """A gate of a baseline and a candidate."""

    def __init__(
        self,
        out: Path,
        baseline: GateArm,
        candidate: GateArm,
        *,
        command: Sequence[str],
        resume: Path | None = None,
        calibrates: bool = False,
        always: bool = False,
    ) -> None:
        """Plan both arms and create the folder, or open that of the gate to resume.

        Args:
            command: Command line that started the gate, which its runs record.
            resume: Folder of an interrupted gate of the same arms; its trials are not repeated.
            calibrates: Measure only the spread: tolerances are not checked and nothing is confirmed.
            always: Compare times also where the ranks of both arms run the same code.

        Raises:
            SuiteError: the suite can't work, which is known before anything is launched.
            UsageError: the folder can't be created, or a tolerance is below what this machine can resolve.
        """
        self._arms, self._observer = (baseline, candidate), Observer()
        self._rules = candidate.suite.gate
        self._plans = plan.make_plan(baseline.suite), plan.make_plan(candidate.suite)
        self._match = match_cases(*self._plans)
        self._calibrates = calibrates
        self._unread_changes = None if always else unread_changes(baseline, candidate)
        self.cases = [slot.candidate for slot in self._match.slots]
        """Cases run in pairs."""
        if not calibrates:
            check_resolution(self._rules, self.cases, load_calibrations(candidate.suite.measure))
        self._clock, self._command = GateTimer(self._rules.minutes), command
        self._folder = (
            GateFolder.resume(resume, self._arms)
            if resume
            else GateFolder.create(out, self._arms, self._plans, command)
        )
        self._failures = self._folder.failures

    def run(self, observer: Observer) -> GateResult:
        """Run both arms until each case has its verdict, and write the result to the folder.

        No other process may run trials in it meanwhile.

        Raises:
            UsageError: another process runs this gate.
            InfrastructureError: the disk is full; everything stored so far is intact.
            KeyboardInterrupt: a second Ctrl-C; no process is left.
        """
        self._observer = observer
        try:
            with self._folder.lock():
                return self._run()
        except InfrastructureError as error:
            advice = f"free some space, then resume with: {self.resume_command}"
            raise InfrastructureError(error.problem, advice) from error

    @property
    def resume_command(self) -> str:
        """Command that resumes this gate, ready to be pasted into a shell."""
        is_resumed = any(word.partition("=")[0] == "--resume" for word in self._command)
        return shlex.join([*self._command, *(() if is_resumed else ("--resume", str(self._folder.path)))])

    def _run(self) -> GateResult:
        stop = StopRequest()
        second: list[CaseTrack] = []
        self._folder.set_state("running")
        with stop.handle_signals():
            first = self._series(self._match.slots, stop, is_second=False)
            flagged = [track for track in first if self._is_flagged(track)]
            if flagged and not (self._calibrates or stop.is_set or self._clock.has_expired):
                self._observer.note(f"{len(flagged)} flagged; a fresh series will confirm or clear them")
                second = self._series(_flagged_slots(flagged), stop, is_second=True)
            self._measure_rounding(first, second, stop)
        self._folder.set_state("interrupted" if stop.is_set else "finished")
        result = retry_eagerly(partial(self._result, first, second, stop.reason))
        self._folder.write_result(result)
        return result

    def _is_flagged(self, track: CaseTrack) -> bool:
        flagged = any(map(is_flagged, track_findings(track, self._rules)))
        return flagged or (not track.failure and launch_failures.is_suspicious(track.launches))

    def _series(self, slots: list[CaseSlot], stop: StopRequest, *, is_second: bool) -> list[CaseTrack]:
        """Run a series of *slots* in fresh processes; return their tracks."""
        tolerances = [self._rules.tolerances_for(slot.candidate.label, slot.candidate.name) for slot in slots]
        blocks = make_tracks(slots, efficiency=any(own.efficiency is not None for own in tolerances))
        sessions = [
            TrialRunner.open(run, arm.suite, self._observer, stop, arm.target)
            for run, arm in zip(self._folder.runs, self._arms, strict=True)
        ]
        with sessions[0] as baseline, sessions[1] as candidate:
            for runner, side in ((baseline, 0), (candidate, 1)):
                runner.build([slot[side] for slot in slots])
            if not is_second:
                self._run_column_pairs((baseline, candidate), stop)
                self._run_required_jobs(candidate, stop)
            series = PairSeries(
                (baseline, candidate),
                self._rules,
                self._observer,
                stop,
                self._clock,
                self._failures,
                unread_changes=None if is_second else self._unread_changes,
            )
            # rounds of its own: a resumed gate with more pairs would mistake other rounds for those of the
            # first
            first_round = SECOND_SERIES_START if is_second else 0
            series.run(blocks, first_round=first_round, candidate_first=is_second)
        return [track for block in blocks for track in block]

    def _run_column_pairs(self, benches: tuple[TrialRunner, TrialRunner], stop: StopRequest) -> None:
        """Run the trials of other kinds of job whose columns are compared: a pair in each round.

        Every second pair begins with the candidate.
        """
        tasks = [
            [task for task in made.trials if task.job.kind in self._compared_kinds] for made in self._plans
        ]
        for runner, of in zip(benches, tasks, strict=True):
            runner.build(cases_to_build(of))
        time_limit = AllocationTimeLimit()
        mates = {(task.job.kind, task.case.name, task.round): task for task in tasks[0]}
        for own in tasks[1]:
            mate = mates.get((own.job.kind, own.case.name, own.round))
            pair = [(benches[0], mate), (benches[1], own)] if mate else []
            for runner, task in pair if own.round % 2 == 0 else pair[::-1]:
                if (
                    task
                    and runner.stored_record(task) is None
                    and not time_limit.should_stop(stop, self._observer, None)
                ):
                    self._observer.trial_started(task, 0, 1, None)
                    self._observer.trial_ended(runner.run(task))

    @property
    def _compared_kinds(self) -> dict[str, float]:
        """Kinds of job whose columns are compared -> allowed worsening."""
        known = job_results()
        if self._calibrates:
            return {}
        return {known[kind].kind.name: limit for kind, limit in self._rules.columns.items()}

    def _run_required_jobs(self, candidate: TrialRunner, stop: StopRequest) -> None:
        """Run the candidate's checks and trainings that the rules require, and their follow-up trials."""
        known, suite = job_results(), self._arms[1].suite
        required = {known[kind].kind.name for kind in self._rules.required_kinds}
        tasks = [task for task in self._plans[1].trials if task.job.kind in required]
        self._run_tasks(candidate, tasks, stop)
        jobs = {word: section for word, section in suite.jobs.items() if word in required}
        cases = list({task.case.id: task.case for task in tasks}.values())
        run_follow_ups(
            candidate, jobs, cases, self._folder.runs[1], self._observer, stop, AllocationTimeLimit()
        )

    def _measure_rounding(self, first: list[CaseTrack], second: list[CaseTrack], stop: StopRequest) -> None:
        """Measure the effect of rounding on the baseline where losses diverge more than usual.

        Also after ``gate.minutes``: one trial decides if the case fails.
        """
        repeated = {track.slot.candidate.id: track for track in second}
        doubted = [
            track.slot.baseline
            for track in first
            if losses.needs_rounding_trials(
                pairs_of_both_series(track, repeated.get(track.slot.candidate.id)), self._rules.loss
            )
        ]
        arm = self._arms[0]
        jobs = arm.suite.jobs.items()
        tasks = [task for word, section in jobs for task in job_kind(word).perturbed_trials(section, doubted)]
        if stop.is_set or not tasks:
            return
        cases = format_count(len(doubted), "case")
        self._observer.note(f"losses diverge in {cases}; measuring how far rounding alone moves the baseline")
        with TrialRunner.open(self._folder.runs[0], arm.suite, self._observer, stop, arm.target) as baseline:
            self._run_tasks(baseline, tasks, stop)

    def _run_tasks(self, bench: TrialRunner, tasks: list[PlannedTrial], stop: StopRequest) -> None:
        """Run those *tasks* that no earlier session has run."""
        if todo := [task for task in tasks if bench.stored_record(task) is None]:
            bench.build(cases_to_build(todo))
            run_trials(bench, todo, self._observer, stop, AllocationTimeLimit())

    def _result(self, first: list[CaseTrack], second: list[CaseTrack], stopped: StopReason) -> GateResult:
        runs = self._folder.analyse()
        before, after = ({row.case.id: row for row in run.cases} for run in runs)
        perturbed = perturbed_losses(runs[0].records)
        repeated = {track.slot.candidate.id: track for track in second}
        unreliable = launch_failures.launch_findings(
            {track.slot.candidate.name: _total_launches(track, repeated) for track in first}
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
            for word, limit in self._compared_kinds.items()
            for verdict in columns.compare_columns(
                word, limit, *(records_of_kind(run.records, word) for run in runs)
            )
        ]
        order = {item.case.name: i for i, item in enumerate(self._plans[1].cases)}
        return GateResult(
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
            environment=fact_differences(
                *(merge_environments(run.records, run.info.machine) for run in runs)
            ),
            skipped=self._match.skipped,
            notes=(*missing_efficiency_note(first, self._rules), *unchanged_note(first)),
            minutes=round(self._clock.elapsed_minutes, 2),
            stopped=stopped,
            folder=str(self._folder.path),
        )


def _total_launches(track: CaseTrack, repeated: Mapping[str, CaseTrack]) -> launch_failures.LaunchCountsByArm:
    """Launches of a case in both series."""
    again = repeated.get(track.slot.candidate.id)
    (before, after), (more_before, more_after) = track.launches, again.launches if again else _NO_LAUNCHES
    return before + more_before, after + more_after


def _flagged_slots(flagged: list[CaseTrack]) -> list[CaseSlot]:
    """Slots of the second series: the flagged cases and their one-device bases."""
    slots = {track.slot.candidate.id: track.slot for track in flagged}
    slots |= {
        track.single_device.slot.candidate.id: track.single_device.slot
        for track in flagged
        if track.single_device
    }
    return list(slots.values())
