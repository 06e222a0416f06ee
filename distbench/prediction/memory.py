"""Peak memory of a case by formulas: without torch, and without a process."""

from __future__ import annotations

from distbench.core import registry
from distbench.core.case import NATIVE_ENGINE, Case
from distbench.data.base import DataSource
from distbench.prediction.estimates import MemoryPrediction, PredictedValue
from distbench.prediction.live_bytes import LiveBytes
from distbench.prediction.strategy_memory import ModeledCase, strategy_memory
from distbench.strategies.base import Strategy
from distbench.workloads.base import Workload, workload_of
from distbench.workloads.operations import RowSplit

_MODELED_OPTIMIZERS = ("adamw", "adam", "sgd")
_ERROR = 0.01
"""Half of the relative interval of a peak: more than 90 % of the errors in docs/planning.md are smaller."""


def predict_memory(case: Case) -> MemoryPrediction | str:
    """Peak memory of the rank of *case* that needs most, or the reason why no formula has it.

    It is what a trace of the case counts, whose operations are those of a CPU. For a GPU the interval begins
    with the peak if norms are fused, as CUDA's are.
    """
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    workload = workload_of(case)
    if reason := _reason(case, workload):
        return reason
    live_bytes = strategy_memory(strategy, ModeledCase(case, workload))
    if isinstance(live_bytes, str):
        return live_bytes
    highest = max(live_bytes, key=_total)
    peak = lowest = _total(highest)
    if case.device == "cuda":
        fused = strategy_memory(strategy, ModeledCase(case, workload, fuses_norms=True))
        lowest = max(_total(live) for live in fused if not isinstance(live, str))
    return MemoryPrediction(highest, PredictedValue(peak, lowest * (1 - _ERROR), peak * (1 + _ERROR)))


def _total(live: LiveBytes) -> float:
    return sum(live.values())


def _reason(case: Case, workload: Workload) -> str:
    """Reason why no formula has the memory of *case*, whatever its strategy; empty: there is none."""
    return _setting_reason(case) or _model_reason(case, workload)


def _setting_reason(case: Case) -> str:
    if case.engine != NATIVE_ENGINE:
        return f"engine = {case.engine.name}: peak memory is predicted for engine native only"
    if case.compile != "none":
        return f"compile = {case.compile}: a compiler decides which tensors are kept"
    if case.activation_checkpointing == "selective":
        return "activation_checkpointing = selective: peak memory is predicted for none and full only"
    if case.precision.float8 != "none":
        return f"precision.float8 = {case.precision.float8}: no formula for its copies"
    if case.precision.loss_scale:
        return "precision.loss_scale: no formula for steps with a loss scale"
    if case.optimizer.name not in _MODELED_OPTIMIZERS:
        names = ", ".join(_MODELED_OPTIMIZERS)
        return f"optimizer.name = {case.optimizer.name}: peak memory is predicted for {names} only"
    return ""


def _model_reason(case: Case, workload: Workload) -> str:
    source: DataSource = registry.create_plugin("data", case.data)
    if source.length_multiple is not None:
        return "padding = longest: the lengths of the rows decide how much memory a step takes"
    if source.packs_rows:
        return "packing: no formula for attention with a mask of documents"
    if workload.expert_layers() is not None:
        return "experts: their routers decide how many tokens each gets"
    if workload.operations(RowSplit(1, 1)) is None:
        return f"workload {case.workload.name}: the operations of its model are not described"
    return ""
