"""Arms of a gate whose trials launch nothing: their records are made at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from distbench.core.case import Case
from distbench.gate.launch_failures import FailureLog
from distbench.gate.series import GateTimer, PairSeries
from distbench.plan import PlannedTrial
from distbench.record import Record
from distbench.run import Observer, StopRequest, TrialRunner
from distbench.suite.gate import GateRules
from support.records import failed, measured


def no_failures() -> bool:
    return False


def failures_at(*launches: int) -> Callable[[], bool]:
    """Whether this launch, from 0 on and with the warm-up, is one of *launches*."""
    numbers = iter(range(1000))
    return lambda: next(numbers) in launches


def timed(case: Case, round_: int, step_s: float = 1.0) -> Record:
    # the last digits differ, so that a series has a spread
    return measured(case, round_=round_, step_s=step_s * (1 + round_ % 3 * 1e-4))


@dataclass
class ScriptedTrials:
    """The trials of one arm."""

    arm: str = ""
    log: list[tuple[str, int, int]] = field(default_factory=list)
    """Arm, world size and round of each trial that was made; the arms of a series may share it."""
    crashes: Callable[[], bool] = no_failures
    """Whether the next launch fails."""
    step_s: Callable[[int], float] = lambda _: 1.0
    """Seconds per step in a round."""
    stored: dict[tuple[str, int], Record] = field(default_factory=dict)
    """Records of an earlier series by case and round."""
    restarts: int = 0

    def restart_fork_servers(self) -> None:
        self.restarts += 1

    def stored_record(self, task: PlannedTrial) -> Record | None:
        return self.stored.get((task.case.id, task.round))

    def run(self, task: PlannedTrial, *, keep: bool = True) -> Record:
        self.log.append((self.arm, task.case.world_size, task.round))
        if self.crashes():
            # each launch has a start of its own
            return replace(failed(task.case, round_=task.round), started=f"launch {len(self.log)}")
        return timed(task.case, task.round, self.step_s(task.round))


def pair_series(
    baseline: ScriptedTrials,
    candidate: ScriptedTrials,
    rules: GateRules,
    *,
    stop: StopRequest | None = None,
    timer: GateTimer | None = None,
    failures: FailureLog | None = None,
) -> PairSeries:
    """The series of pairs of two arms, which nobody watches."""
    arms = cast("tuple[TrialRunner, TrialRunner]", (baseline, candidate))
    asked = stop or StopRequest(), timer or GateTimer(None)
    return PairSeries(arms, rules, Observer(), *asked, failures or FailureLog())
