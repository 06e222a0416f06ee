"""``profile``: a few steps under torch's profiler: where a step's time goes, and its collectives."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, alike
from distbench.metrics.base import Absent, Left, Metric, Session, Trial, Values, or_absent
from distbench.metrics.communication.traffic import SCALAR, Counted
from distbench.metrics.profile import pipeline
from distbench.metrics.profile.one_step import TABLE

_SHARE = (
    "Mean over ranks, under the profiler: a share of profile_step_s, never a time to compare with step_s."
)
_CPU_COMM = (
    "On a CPU, gloo's threads share the cores with the computation: what is hidden still slows it down."
)

_PLACES = {
    "inside": "inside a node (a process group whose ranks are all on it)",
    "between": "between nodes (a process group that spans several)",
}

PARTS = {
    "data": "Making and moving the batch.",
    "forward": "The forward pass, without exposed communication.",
    "backward": "The backward pass, without updates inside of it and exposed communication.",
    "optimizer": "Clipping and the update, also inside of the backward pass, without exposed communication.",
    "exposed_comm": "Communication that no computation hides.",
    "other": "The rest: the loop, gaps, idle device.",
}
"""Parts of a step, which add up to it."""

WARM_STEPS = {"cuda": 1}
"""Kind of device -> steps at the begin of the pass ``profile`` that are left out: on a GPU the first one pays
for the start of CUPTI."""

_FLAGS = TableSpec(
    "flags",
    "Reasons to look at the trace of a trial, one per row; left by rank 0 for all ranks.",
    (TableColumn("reason", "varchar", "What is unusual, and where."),),
)


@dataclass
class AttentionRan(Left):
    """Kernels that attention ran in the profiled steps."""

    kernels: list[str]


@dataclass
class _State:
    profiler: Any = None
    step: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class Profile(Metric):
    """Step breakdown, exposed communication, transfer and waiting of each collective, from one trace."""

    tables = (_FLAGS, TABLE, pipeline.TABLE)
    early = ("distbench.metrics.profile.timeline",)
    passes = frozenset({"profile", "unsynced"})
    columns = (
        *alike("s", None, "mean", per_step=True)(
            profile_step_s="Wall time of a step under the profiler; the sum of the six parts below.",
        ),
        *alike("", None, "first")(
            profile_slowdown="Slowest rank's profile_step_s over its step_s: what the instrument costs.",
        ),
        *alike("s", "lower", "mean", per_step=True)(
            **{f"profile_{name}_s": f"{doc} {_SHARE}" for name, doc in PARTS.items()},
            comm_s="Time in which any collective of a rank runs, in a profiled step (union of the backend's "
            f"intervals). {_CPU_COMM}",
            comm_exposed_s="Exposed communication: union of a rank's collectives less the union of its "
            f"computation, by interval arithmetic on the trace (as HTA and TraceLens define it). {_CPU_COMM}",
        ),
        *alike("s", None, "max", per_step=True)(
            unsynced_step_s="Wall time of a step without any reduction of gradients, timed like step_s.",
        ),
        *alike("s", "lower", "first")(
            comm_exposed_by_difference_s="Slowest rank's step_s less unsynced_step_s: exposed "
            "communication measured without a profiler.",
        ),
        *alike("s", "lower", "mean", per_step=True)(
            comm_transfer_s="Sum over the collectives of a step of the shortest time that any rank of the "
            "group spent in it.",
            comm_wait_s="Sum over the collectives of what a rank spent in each beyond the shortest: "
            "waiting for others.",
        ),
        *alike("s", "lower", "mean", per_step=True)(
            **{
                f"comm_{where}_s": f"Time in a profiled step in which a transfer {places} runs: union of the "
                "last parts of the collectives, each as long as the shortest time that any rank of the "
                "group spent in it, so that nobody's waiting is in it."
                for where, places in _PLACES.items()
            },
            **{
                f"comm_{where}_exposed_s": f"The part of comm_{where}_s that no computation of the rank hides"
                f"{less}. {_CPU_COMM}"
                for where, less in {"inside": " and no transfer between nodes covers", "between": ""}.items()
            },
        ),
        *alike("B/s", "higher", "mean", per_step=True)(
            **{
                f"comm_{where}_busbw": f"Bus bandwidth {places} that a rank's collectives reached together: "
                "payloads times nccl-tests' factors over the time in which their transfers ran, of those "
                f"with more than {SCALAR} bytes."
                for where, places in _PLACES.items()
            },
        ),
        *alike("s", "lower", "max", per_step=True)(
            work_s="Step under the profiler less the exposed waiting for other ranks: a rank's own work.",
        ),
        *alike("", "lower", "first")(
            imbalance="work_s of the slowest rank over that of the median rank, mean over the profiled "
            "steps; 1: perfectly balanced.",
        ),
        *pipeline.COLUMNS,
    )

    def start(self, session: Session) -> Any:
        if session.pass_ != "profile":
            return _State()
        import torch.profiler

        activities = [torch.profiler.ProfilerActivity.CPU]
        if session.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=False)
        profiler.start()
        return _State(profiler)

    def before_step(self, session: Session, state: _State) -> None:
        if state.profiler:
            state.step.enter_context(_mark("step"))

    def after_step(self, session: Session, state: _State) -> None:
        if session.device.type == "cuda":
            import torch

            # the device's part of the step ends inside the mark
            torch.cuda.synchronize()
        state.step.close()

    def around(self, session: Session, state: _State, span: str) -> AbstractContextManager[Any]:
        return _mark(span) if state.profiler else nullcontext()

    def values(self, session: Session, state: _State) -> Values:
        from distbench.metrics.profile import timeline
        from distbench.metrics.profile.kept import keep_trace

        if state.profiler is None:
            return {"unsynced_step_s": [*session.steps]} if session.steps else {}
        state.profiler.stop()
        counted = session.left(Counted)
        profiled = timeline.of(session, counted, state.profiler.profiler.kineto_results.events())
        if counted and profiled.rows:
            # the same collectives, with their times
            counted.rows[:] = profiled.rows
        session.leave(AttentionRan(profiled.attention))
        if session.rank == 0:
            session.tables["flags"] = [{"reason": reason} for reason in profiled.flags]
        if session.keep_traces or profiled.flags:
            trace = session.folder / f"rank{session.rank}.trace.json.gz"
            keep_trace(state.profiler, trace)
            # the first row of a rank is that of the step
            profiled.one_step[:1] = [{**row, "trace": trace.name} for row in profiled.one_step[:1]]
        session.tables["timeline"] = profiled.one_step
        if profiled.passes:
            session.tables["pipeline"] = profiled.passes
        if profiled.unseen:
            return {name: Absent(profiled.unseen) for name in self._of_trace()}
        return profiled.values

    def _of_trace(self) -> list[str]:
        """Columns that a trace gives."""
        of_steps = [each.name for each in self.columns if each.per_step and each.name != "unsynced_step_s"]
        return [*of_steps, "bubble_theory"]

    def summary(self, trial: Trial) -> dict[str, float | Absent]:
        return {
            "profile_slowdown": or_absent(lambda: _slowdown(trial)),
            "imbalance": or_absent(lambda: _imbalance(trial)),
            "comm_exposed_by_difference_s": or_absent(lambda: _difference(trial)),
        }


def _mark(name: str) -> AbstractContextManager[Any]:
    import torch.profiler

    from distbench.metrics.profile.trace import MARK

    return torch.profiler.record_function(MARK + name)


def _slowdown(trial: Trial) -> float:
    return _seen(trial).slowest_mean("profile_step_s") / trial.slowest_mean("step_s")


def _seen(trial: Trial) -> Trial:
    if not any(trial.samples.get("profile_step_s", [])):
        raise Absent("no step was profiled (measure.profile_steps = 0), or profile_step_s says why not")
    return trial


def _difference(trial: Trial) -> float:
    if not any(trial.samples.get("unsynced_step_s", [])):
        raise Absent(
            "measure.unsynced_steps = 0, or the strategy has no step without communication, as where the "
            "optimizer communicates too"
        )
    return trial.slowest_mean("step_s") - trial.slowest_mean("unsynced_step_s")


def _imbalance(trial: Trial) -> float:
    if len(_seen(trial).samples["profile_step_s"]) < 2:
        raise Absent("needs at least two ranks")
    return statistics.fmean(max(step) / statistics.median(step) for step in trial.by_step("work_s"))
