"""``horovod``: Horovod's ring all-reduce."""

from dataclasses import dataclass, fields

from distbench import optimizers
from distbench.core.case import Case
from distbench.engines.base import Framework
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.engine import Engine

_REDUCED = ("fp32", "fp16")
"""Dtypes in which Horovod's ``Compression`` sends gradients of fp32 parameters."""
_NATIVE = "or engine: native"


@dataclass(frozen=True)
class Horovod(Framework):
    """Horovod: its optimizer all-reduces each gradient as soon as it is computed, over gloo."""

    built_packages = ("horovod",)
    strategies = ("ddp",)
    prepare_s = 2700.0
    communicates_by_torch = False

    def problem(self, case: Case, strategy: Strategy) -> str | None:
        if not isinstance(strategy, DistributedDataParallel):
            return f"engine horovod has no strategy {case.strategy.name}; it has ddp; use that, {_NATIVE}"
        if case.device != "cpu":
            return f"engine horovod is built for CPUs (gloo); use device: cpu, {_NATIVE}"
        return _option_problem(strategy) or _precision_problem(case) or _optimizer_problem(case)

    def engine_class(self, strategy: Strategy) -> str:
        return "HorovodEngine"

    def prepare(self, case: Case) -> list[str]:
        from distbench.engines.horovod.installation import ensure_horovod

        return ensure_horovod()

    def build(self, strategy: Strategy, context: RankContext) -> Engine:
        from distbench.engines.horovod.installation import use_horovod

        use_horovod()
        from distbench.engines.horovod.engine import build_horovod

        return build_horovod(context)


def _option_problem(strategy: DistributedDataParallel) -> str | None:
    default = DistributedDataParallel()
    names = [each.name for each in fields(strategy)]
    changed = [name for name in names if getattr(strategy, name) != getattr(default, name)]
    if not changed:
        return None
    return f"ddp.{changed[0]} has no counterpart in engine horovod; leave it out, or use engine: native"


def _precision_problem(case: Case) -> str | None:
    precision = case.precision
    if precision.compute == "fp16":
        return f"engine horovod does not scale losses for fp16; use precision: bf16 or fp32, {_NATIVE}"
    if precision.master != "fp32" or precision.reduce not in _REDUCED:
        return (
            f"precision.reduce = {precision.reduce} with precision.master = {precision.master}: engine "
            f"horovod reduces gradients of fp32 parameters in {' or '.join(_REDUCED)}; use one of these, "
            f"{_NATIVE}"
        )
    return None


def _optimizer_problem(case: Case) -> str | None:
    kind = optimizers.entry_of(case.optimizer)
    if not kind.packages and not kind.companion:
        return None
    # it makes the optimizer anew from its parameter groups alone
    return (
        f"optimizer.name = {case.optimizer.name}: engine horovod keeps what parameter groups hold, which is "
        f"all of torch's own optimizers of one kind alone; use one of these (adamw, sgd, ...), {_NATIVE}"
    )
