"""``profile``: a few steps under torch's profiler: where a step's time goes, and its collectives."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.metrics.base import (
    PROFILE_TOKENS,
    Metric,
    NotAvailable,
    PassContext,
    SharedResult,
    TrialData,
    Values,
    value_or_reason,
)
from distbench.metrics.communication.traffic import SCALAR_BYTES, CountedCollectives
from distbench.metrics.profile import layer_times, pipeline
from distbench.metrics.profile.step_timeline import TABLE

_SHARE_DOC = (
    "Mean over ranks, under the profiler: a share of profile_step_s, never a time to compare with step_s."
)
_CPU_COMM = (
    "On a CPU, gloo's threads share the cores with the computation: hidden communication still slows it down."
)

_SCOPE_DOCS = {
    "inside": "inside a node (a process group whose ranks are all on one node)",
    "between": "between nodes (a process group that spans several)",
}

STEP_PART_DOCS = {
    "data": "Making and moving the batch.",
    "forward": "Operations of the forward pass, without exposed communication.",
    "backward": "Operations of the backward pass, without updates inside it and exposed communication.",
    "optimizer": "Clipping and the update, also inside the backward pass, without exposed communication.",
    "exposed_comm": "Communication that no computation hides.",
    "other": "Work outside of these parts, such as a hook of the user.",
    "idle": "Nothing runs: Python between operations, launches, an idle device.",
}
"""Part of a step -> definition; the parts add up to the step. Older records have no ``idle``: on a GPU it is
in ``other``, on a CPU in the part that it lies in."""

WARM_STEPS = {"cuda": 1}
"""Kind of device -> steps at the start of the pass ``profile`` that are excluded: on a GPU the first one
includes the start of CUPTI."""

_FLAGS = TableSpec(
    "flags",
    "Anomalies in the trace of a trial, one per row; written by rank 0 for all ranks.",
    (TableColumn("reason", "varchar", "The anomaly, and its place."),),
)


@dataclass
class AttentionKernels(SharedResult):
    """Attention kernels that ran in the profiled steps."""

    kernels: list[str]


@dataclass
class _State:
    profiler: Any = None
    step: ExitStack = field(default_factory=ExitStack)
    steps_begun: int = 0
    layers: Any = None
    """Hooks that mark the layers in the trace; None: the pass has none."""
    costs: Any = None
    """Counter of the operations of layers; None: the pass has none, or has counted its step."""


@dataclass(frozen=True)
class Profile(Metric):
    """Step breakdown, exposed communication, transfer and waiting of each collective, from one trace."""

    tables = (_FLAGS, TABLE, layer_times.TABLE, pipeline.TABLE)
    early_imports = ("distbench.metrics.profile.timeline", "distbench.metrics.profile.layers")
    passes = frozenset({"count", "profile", "unsynced"})
    columns = (
        *columns_of("s", None, "mean", per_step=True)(
            profile_step_s="Wall time of a step under the profiler; the sum of the parts below.",
        ),
        *columns_of("", None, "first")(
            profile_slowdown="Slowest rank's profile_step_s over its step_s: the overhead of the profiler.",
        ),
        *columns_of("s", "lower", "mean", per_step=True)(
            **{f"profile_{name}_s": f"{doc} {_SHARE_DOC}" for name, doc in STEP_PART_DOCS.items()},
            comm_s="Time in which any collective of a rank runs, in a profiled step (union of the backend's "
            f"intervals). {_CPU_COMM}",
            comm_exposed_s="Exposed communication: union of a rank's collectives less the union of its "
            f"computation, by interval arithmetic on the trace (as HTA and TraceLens define it). {_CPU_COMM}",
        ),
        *columns_of("s", None, "max", per_step=True)(
            unsynced_step_s="Wall time of a step without any reduction of gradients, timed like step_s.",
        ),
        *columns_of("s", "lower", "first")(
            comm_exposed_by_difference_s="Slowest rank's step_s less unsynced_step_s: exposed "
            "communication measured without a profiler.",
        ),
        *columns_of("s", "lower", "mean", per_step=True)(
            comm_transfer_s="Sum over the collectives of a step of the shortest time that any rank of the "
            "group spent in it.",
            comm_wait_s="Sum over the collectives of the time of the rank beyond the shortest: waiting "
            "for others.",
        ),
        *columns_of("s", "lower", "mean", per_step=True)(
            **{
                f"comm_{where}_s": f"Time in a profiled step in which a transfer {places} runs: union of "
                "the last parts of the collectives, each as long as the shortest time that any rank of "
                "the group spent in it, which excludes waiting."
                for where, places in _SCOPE_DOCS.items()
            },
            **{
                f"comm_{where}_exposed_s": f"The exposed part of comm_{where}_s: not hidden by "
                f"computation of the rank{less}. {_CPU_COMM}"
                for where, less in {
                    "inside": " nor covered by a transfer between nodes",
                    "between": "",
                }.items()
            },
        ),
        *columns_of("B/s", "higher", "mean", per_step=True)(
            **{
                f"comm_{where}_busbw": f"Bus bandwidth {places} that a rank's collectives reached together: "
                "payloads times nccl-tests' factors over the time in which their transfers ran, of those "
                f"with more than {SCALAR_BYTES} bytes."
                for where, places in _SCOPE_DOCS.items()
            },
        ),
        *columns_of("s", "lower", "max", per_step=True)(
            work_s="Step under the profiler less the exposed waiting for other ranks: a rank's own work.",
        ),
        *columns_of("tokens", None, "mean", per_step=True)(
            **{
                PROFILE_TOKENS: "Tokens that a rank computes in a profiled step, padding included. Only "
                "where rows have different numbers of labels."
            },
        ),
        *columns_of("", "lower", "first")(
            imbalance="work_s of the slowest rank over that of the median rank, mean over the profiled "
            "steps; 1: perfectly balanced.",
        ),
        *pipeline.COLUMNS,
    )

    @property
    def marks_layers(self) -> bool:
        """True if the modules of the model may get hooks that mark its layers in the trace."""
        return True

    def start(self, context: PassContext) -> Any:
        # compiled code has no modules, and replicas on several devices run in threads
        has_layers = self.marks_layers and context.case.compile == "none" and context.devices_per_rank == 1
        # the FLOPs of a step are those of another one only if its samples are as long
        if context.pass_name == "count" and has_layers and not context.lengths_differ:
            from distbench.metrics.profile.layers import LayerCosts

            return _State(costs=LayerCosts())
        if context.pass_name != "profile":
            return _State()
        import torch.profiler

        from distbench.metrics.profile.layers import LayerHooks

        activities = [torch.profiler.ProfilerActivity.CPU]
        if context.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=False)
        profiler.start()
        return _State(profiler, layers=LayerHooks(_mark_layer) if has_layers else None)

    def before_step(self, context: PassContext, state: _State) -> None:
        if state.profiler:
            import torch.profiler

            # other tools, such as HTA, find the steps of a trace by torch's own name
            state.step.enter_context(torch.profiler.record_function(f"ProfilerStep#{state.steps_begun}"))
            state.step.enter_context(_record_function("step"))
            state.steps_begun += 1
        if watched := state.layers or state.costs:
            state.step.enter_context(watched.one_step())

    def after_step(self, context: PassContext, state: _State) -> None:
        if context.device.type == "cuda":
            import torch

            # the device's part of the step must end inside the mark
            torch.cuda.synchronize()
        state.step.close()
        if state.costs:
            # all steps have the same layers
            context.share(state.costs.counted())
            state.costs = None

    def around(self, context: PassContext, state: _State, span: str) -> AbstractContextManager[Any]:
        if state.costs:
            counting: AbstractContextManager[Any] = state.costs.observe(span)
            return counting
        return _record_function(span) if state.profiler else nullcontext()

    def values(self, context: PassContext, state: _State) -> Values:
        from distbench.metrics.profile import timeline
        from distbench.metrics.profile.exchange import run_in_ranks
        from distbench.metrics.profile.trace_files import read_profiler, save_trace

        if context.pass_name == "count":
            return {}
        if state.profiler is None:
            return {"unsynced_step_s": [*context.step_times]} if context.step_times else {}
        state.profiler.stop()
        counted = context.shared(CountedCollectives)
        trace = read_profiler(state.profiler, context.folder)
        work = timeline.analyse_profile(context, counted, trace, state.layers)
        profiled = run_in_ranks(work, context.world_size)
        if counted and profiled.collective_rows:
            # the same collectives, with their times
            counted.rows[:] = profiled.collective_rows
        context.share(AttentionKernels(profiled.attention))
        if context.rank == 0:
            context.tables["flags"] = [{"reason": reason} for reason in profiled.flags]
        if context.keep_traces or profiled.flags:
            file = context.folder / f"rank{context.rank}.trace.json.gz"
            save_trace(state.profiler, file)
            # the first row of a rank is that of the step
            profiled.timeline_rows[:1] = [{**row, "trace": file.name} for row in profiled.timeline_rows[:1]]
        if profiled.layer_rows:
            context.tables["layers"] = profiled.layer_rows
        if unseen := context.unseen_communication:
            # parts of a step are what remains of it beside exposed communication
            kept = ("profile_step_s", *(column.name for column in pipeline.COLUMNS))
            own = {name: value for name, value in profiled.values.items() if name in kept}
            return {**dict.fromkeys(self._trace_columns(), unseen), **own}
        context.tables["timeline"] = profiled.timeline_rows
        if profiled.pipeline_rows:
            context.tables["pipeline"] = profiled.pipeline_rows
        if profiled.unavailable_reason:
            return {name: NotAvailable(profiled.unavailable_reason) for name in self._trace_columns()}
        return {**profiled.values, **_profiled_tokens(context)}

    def _trace_columns(self) -> list[str]:
        """Columns that come from a trace."""
        others = ("unsynced_step_s", PROFILE_TOKENS)
        of_steps = [each.name for each in self.columns if each.per_step and each.name not in others]
        return [*of_steps, "bubble_theory"]

    def summary(self, trial: TrialData) -> dict[str, float | NotAvailable]:
        return {
            "profile_slowdown": value_or_reason(lambda: _slowdown(trial)),
            "imbalance": value_or_reason(lambda: _imbalance(trial)),
            "comm_exposed_by_difference_s": value_or_reason(lambda: _difference(trial)),
        }


def _profiled_tokens(context: PassContext) -> Values:
    """Tokens of the steps that are profiled; none if all samples have the same number of labels."""
    counts = context.token_counts[WARM_STEPS.get(context.device.type, 0) :]
    return {PROFILE_TOKENS: [float(count.computed) for count in counts]} if counts else {}


def _mark_layer(index: int) -> AbstractContextManager[Any]:
    import torch

    from distbench.traces.trace import LAYER_PREFIX

    # a tenth of the time of record_function, which would lengthen the gaps of a step with many modules
    mark: AbstractContextManager[Any] = torch._C._profiler._RecordFunctionFast(f"{LAYER_PREFIX}{index}")
    return mark


def _record_function(name: str) -> AbstractContextManager[Any]:
    import torch.profiler

    from distbench.traces.trace import MARK_PREFIX

    return torch.profiler.record_function(MARK_PREFIX + name)


def _slowdown(trial: TrialData) -> float:
    return _require_profile(trial).slowest_mean("profile_step_s") / trial.slowest_mean("step_s")


def _require_profile(trial: TrialData) -> TrialData:
    if not any(trial.samples.get("profile_step_s", [])):
        raise NotAvailable(
            "no step was profiled: measure.profile_steps = 0, or see the reason at profile_step_s"
        )
    return trial


def _difference(trial: TrialData) -> float:
    if not any(trial.samples.get("unsynced_step_s", [])):
        raise NotAvailable(
            "not measured: measure.unsynced_steps = 0, or the strategy can't run a step without "
            "communication, for example because the optimizer communicates"
        )
    return trial.slowest_mean("step_s") - trial.slowest_mean("unsynced_step_s")


def _imbalance(trial: TrialData) -> float:
    if len(_require_profile(trial).samples["profile_step_s"]) < 2:
        raise NotAvailable("needs at least two ranks")
    return statistics.fmean(max(step) / statistics.median(step) for step in trial.by_step("work_s"))
