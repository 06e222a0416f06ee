"""``profile``: a few steps under torch's profiler: where a step's time goes, and its collectives."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.metrics.base import Absent, Column, Metric, Pass, Session, Trial, Values

_SHARE = (
    "Mean over ranks, under the profiler: a share of profile_step_s, never a time to compare with step_s."
)
_CPU_COMM = (
    "On a CPU, gloo's threads share the cores with the computation: what is hidden still slows it down."
)


def _part(name: str, doc: str) -> Column:
    return Column(f"profile_{name}_s", "s", "lower", "mean", f"{doc} {_SHARE}", per_step=True)


@dataclass
class _State:
    profiler: Any = None
    mark: AbstractContextManager[Any] | None = None


@dataclass(frozen=True)
class Profile(Metric):
    """Step breakdown, exposed communication, transfer and waiting of each collective, from one trace."""

    passes: ClassVar[frozenset[Pass]] = frozenset({"profile", "unsynced"})
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "profile_step_s",
            "s",
            None,
            "mean",
            "Wall time of a step under the profiler; the sum of the six parts below.",
            per_step=True,
        ),
        Column(
            "profile_slowdown",
            "",
            None,
            "first",
            "Slowest rank's profile_step_s over its step_s: what the instrument costs.",
        ),
        _part("data", "Making and moving the batch."),
        _part("forward", "The forward pass, without exposed communication."),
        _part("backward", "The backward pass, without exposed communication."),
        _part("optimizer", "Clipping and the update, without exposed communication."),
        _part("exposed_comm", "Communication that no computation hides."),
        _part("other", "The rest: the loop, gaps, idle device."),
        Column(
            "comm_s",
            "s",
            "lower",
            "mean",
            "Time in which any collective of a rank runs, in a profiled step (union of the backend's "
            f"intervals). {_CPU_COMM}",
            per_step=True,
        ),
        Column(
            "comm_exposed_s",
            "s",
            "lower",
            "mean",
            "Exposed communication: union of a rank's collectives less the union of its computation, by "
            f"interval arithmetic on the trace (as HTA and TraceLens define it). {_CPU_COMM}",
            per_step=True,
        ),
        Column(
            "unsynced_step_s",
            "s",
            None,
            "max",
            "Wall time of a step without any reduction of gradients, timed like step_s.",
            per_step=True,
        ),
        Column(
            "comm_exposed_by_difference_s",
            "s",
            "lower",
            "first",
            "Slowest rank's step_s less unsynced_step_s: exposed communication measured without a profiler.",
        ),
        Column(
            "comm_transfer_s",
            "s",
            "lower",
            "mean",
            "Sum over the collectives of a step of the shortest time that any rank of the group spent in it.",
            per_step=True,
        ),
        Column(
            "comm_wait_s",
            "s",
            "lower",
            "mean",
            "Sum over the collectives of what a rank spent in each beyond the shortest: waiting for others.",
            per_step=True,
        ),
        Column(
            "work_s",
            "s",
            "lower",
            "max",
            "Step under the profiler less the exposed waiting for other ranks: a rank's own work.",
            per_step=True,
        ),
        Column(
            "imbalance",
            "",
            "lower",
            "first",
            "work_s of the slowest rank over that of the median rank, mean over the profiled steps; 1: "
            "perfectly balanced.",
        ),
    )

    def start(self, session: Session) -> Any:
        state = _State()
        if session.pass_ == "profile":
            state.profiler = _profiler(on_gpu=session.device.type == "cuda")
            state.profiler.start()
        return state

    def before_step(self, session: Session, state: _State) -> None:
        state.mark = _mark("step") if state.profiler else nullcontext()
        state.mark.__enter__()

    def after_step(self, session: Session, state: _State) -> None:
        if session.device.type == "cuda":
            import torch

            # the device's part of the step ends inside the mark
            torch.cuda.synchronize()
        assert state.mark is not None
        state.mark.__exit__(None, None, None)

    def around(self, session: Session, state: _State, span: str) -> AbstractContextManager[Any]:
        return _mark(span) if state.profiler else nullcontext()

    def values(self, session: Session, state: _State) -> Values:
        from distbench.metrics import _timeline

        if state.profiler is None:
            return {"unsynced_step_s": [*session.steps]} if session.steps else {}
        state.profiler.stop()
        timeline = _timeline.of(session, state.profiler.profiler.kineto_results.events())
        if timeline.rows:
            # what was counted, now with its times
            session.kept["collective_rows"][:] = timeline.rows
        if session.rank == 0:
            session.tables["flags"] = [{"reason": reason} for reason in timeline.flags]
        if session.keep_traces or timeline.flags:
            file = session.folder / f"rank{session.rank}.trace.json.gz"
            state.profiler.export_chrome_trace(str(file))
        return timeline.values

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        if not trial.samples.get("profile_step_s"):
            raise Absent("measure.profile_steps = 0")
        slowdown = trial.slowest_mean("profile_step_s") / trial.slowest_mean("step_s")
        return {
            "profile_slowdown": slowdown,
            "imbalance": _imbalance(trial),
            "comm_exposed_by_difference_s": _difference(trial),
        }


def _profiler(*, on_gpu: bool) -> Any:
    import torch.profiler

    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True, acc_events=False)


def _mark(name: str) -> AbstractContextManager[Any]:
    import torch.profiler

    from distbench.metrics._trace import MARK

    return torch.profiler.record_function(MARK + name)


def _difference(trial: Trial) -> float | Absent:
    if not any(trial.samples.get("unsynced_step_s", [])):
        return Absent(
            "measure.unsynced_steps = 0, or the strategy offers no step without reduction (ddp does)"
        )
    return trial.slowest_mean("step_s") - trial.slowest_mean("unsynced_step_s")


def _imbalance(trial: Trial) -> float | Absent:
    if len(trial.samples["profile_step_s"]) < 2:
        return Absent("one rank has nobody to wait for")
    ranks = trial.samples.get("work_s", [])
    steps = [[value for value in step if value is not None] for step in zip(*ranks, strict=True)]
    if not steps or any(len(step) < len(ranks) for step in steps):
        return Absent("needs work_s of every rank")
    return statistics.fmean(max(step) / statistics.median(step) for step in steps)
