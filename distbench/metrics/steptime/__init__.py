"""``steptime``: how long a step takes, and whether that had settled."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, TrialData, Values
from distbench.metrics.steptime import drift

_TOO_LARGE = NotAvailable("the batches of all timed steps are too large to be in memory at once")


@dataclass(frozen=True)
class StepTime(Metric):
    """Wall time of whole steps, back to back: data, forward, backward, reduction, optimizer."""

    passes = frozenset({"warmup", "time", "ready"})
    columns = (
        *columns_of("s", "lower", "max", per_step=True)(
            step_s="Wall time of a step: perf_counter on a CPU, CUDA events on a GPU. The trial's value "
            "is the window of its slowest rank over the number of timed steps.",
        ),
        *columns_of("s", "lower", "max")(
            cpu_s="CPU time of the process per timed step, all threads (process_time): next to the wall "
            "time it separates a slow machine from slow code.",
        ),
        *columns_of("s", "lower", "mean", per_step=True)(
            data_wait_s="Time of a timed step until the rank has its micro-batches: making them, or waiting "
            "for the workers of its loader, and the launch of their copy to a GPU.",
        ),
        *columns_of("s", "lower", "max", per_step=True)(
            ready_step_s="Wall time of a step whose micro-batches are in memory before it begins, as an "
            "infinitely fast loader would have them; only with a loader. The trial's value is the window of "
            "its slowest rank over the number of steps, as for step_s.",
        ),
        *columns_of("s", None, "max", per_step=True)(
            warmup_step_s="Wall time of each warm-up step; the first may compile and allocate.",
        ),
        *columns_of("s", "lower", "max")(
            first_step_s="Wall time of the very first step.",
            compile_s="Time that torch.compile spent in the warm-up (torch._dynamo's own clock). C++ ops "
            "are built before any trial and are not part of it.",
            compile_in_window_s="Time of torch.compile inside the timed window, which should be none; "
            "absent if it is.",
        ),
        *columns_of("", None, "first")(
            drift="Change of the step time from the last warm-up steps to the end of the timed window, "
            "over its median (Theil-Sen slope); negative: steps were still speeding up.",
            drift_p="One-sided p-value of steps becoming faster over that stretch (Mann-Kendall, with the "
            "variance of autocorrelated steps after Hamed & Rao); a case is judged by all of its trials.",
        ),
    )

    def start(self, context: PassContext) -> Any:
        return time.process_time(), _compile_seconds()

    def values(self, context: PassContext, state: Any) -> Values:
        began, compiled = state
        spent, compiling = time.process_time() - began, _compile_seconds() - compiled
        steps: list[float | None] = [*context.step_times]
        if context.pass_name == "warmup":
            return {
                "warmup_step_s": steps,
                "first_step_s": steps[:1],
                "compile_s": _or_not_compiled(compiling),
            }
        if context.pass_name == "ready":
            return {"ready_step_s": steps or _TOO_LARGE}
        window = {"compile_in_window_s": _or_not_compiled(compiling)}
        waits: list[float | None] = [*context.data_waits]
        return {"step_s": steps, "data_wait_s": waits, "cpu_s": spent / max(1, len(steps)), **window}

    def summary(self, trial: TrialData) -> dict[str, float | NotAvailable]:
        ready = (
            {"ready_step_s": trial.slowest_mean("ready_step_s")} if "ready_step_s" in trial.samples else {}
        )
        return {"step_s": trial.slowest_mean("step_s"), **ready, **_drift_values(trial)}

    def degraded_reason(self, trial: TrialData) -> str:
        seconds = max(
            (s for rank in trial.samples.get("compile_in_window_s", []) for s in rank if s), default=0
        )
        if not seconds:
            return ""
        return f"torch.compile ran for {seconds:.3g} s inside the timed window; increase measure.warmup"


def _compile_seconds() -> float:
    """Seconds that torch.compile has spent in this process so far, by its own clock."""
    import torch._dynamo.utils as dynamo

    return float(dynamo.calculate_time_spent().get("total_wall_time", 0.0))


def _or_not_compiled(seconds: float) -> float | NotAvailable:
    return seconds or NotAvailable("nothing was compiled inside it")


def _drift_values(trial: TrialData) -> dict[str, float | NotAvailable]:
    warm = trial.slowest_steps("warmup_step_s") if trial.samples.get("warmup_step_s") else []
    series = drift.trend_window(warm, trial.slowest_steps("step_s"))
    if len(series) < drift.MIN_STEPS:
        reason = f"drift needs at least {drift.MIN_STEPS} steps; increase measure.steps or measure.warmup"
    elif not statistics.median(series):
        reason = "the measured step time is zero"
    else:
        return {"drift": drift.relative_change(series), "drift_p": drift.falling_p_value(series)}
    return dict.fromkeys(("drift", "drift_p"), NotAvailable(reason))
