"""Traffic of FSDP, which gathers and reduces a model unit by unit. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import CallCount, ExpectedCollective
from distbench.strategies.theory.data_parallelism import ShardingLevel
from distbench.strategies.theory.pipeline_parallelism import stages_of
from distbench.workloads.base import workload_of
from distbench.workloads.layer_shapes import Shape


@dataclass(frozen=True)
class ShardedUnits:
    """Units of a model: some of layers, and the root, which has everything else."""

    of_layers: int
    """Number of units of layers."""
    level: ShardingLevel
    reshards_root: bool = False
    """The root is also released between forward and backward pass, which begins with it."""
    pads_rows: bool = True
    """The rows of each tensor are padded to a multiple of the shards (FSDP2)."""
    is_in_order: bool = True
    """Each unit begins its own gather before its forward pass, and before its backward pass that of the unit
    after it; only then it is known which collectives follow one another."""
    is_split: bool = False
    """The tensors are split over other ranks as well, so the sizes of their parts are not known."""

    def traffic(
        self,
        case: Case,
        parameters: float,
        *,
        shards: int,
        replicas: int = 1,
        dimension: str | None = None,
    ) -> list[ExpectedCollective]:
        """Collectives of a rank in a step for its *parameters*; see ``ShardingLevel.traffic``."""
        padded_to = shards if self.pads_rows else 1
        root = None if self.is_split else _root_elements(case, parameters, padded_to)
        whole = parameters if self.is_split else padded_parameters(case, parameters, padded_to)
        gathered = None if root is None else self._gathered(case, whole, root)
        moved = self.level.traffic(
            case,
            parameters,
            shards=shards,
            replicas=replicas,
            dimension=dimension,
            gathered=gathered,
            reduced=whole,
            gathers=self._gathers(case),
            reductions=self._reductions(case),
        )
        if root is None or (unpadded := _root_elements(case, parameters, 1)) is None:
            return moved
        needed = 2 * case.batch.gradient_accumulation_steps * parameters
        still_gathered = needed - self._gathered(case, parameters, unpadded)
        still_bytes = still_gathered * DTYPE_BYTES[case.precision.compute]
        return [
            replace(one, still_gathered_bytes=still_bytes) if one.op == "all_gather" else one for one in moved
        ]

    def _gathered(self, case: Case, parameters: float, root: float) -> float:
        """Elements gathered in a step, of *parameters*, *root* of which are the root's."""
        micro = case.batch.gradient_accumulation_steps
        if self.level.gather_frequency == "pass":
            return micro * (2 * parameters - (0 if self.reshards_root else root))
        return parameters if self.level.gather_frequency == "step" else micro * parameters

    def _gathers(self, case: Case) -> CallCount:
        micro, units = case.batch.gradient_accumulation_steps, self.of_layers
        reduced = micro if self.level.reduce_frequency == "micro_batch" else 1
        forward = 1 if self.level.gather_frequency == "step" else micro
        calls, synchronizations = forward * (units + 1), forward * units
        if forward == reduced:
            # after the reductions that end a backward pass, the next forward pass begins with a gather
            synchronizations -= forward - 1
        if self.level.gather_frequency == "pass":
            calls += micro * (units + self.reshards_root)
            # a gather follows the reduction of the unit before the last one, unless there is none
            synchronizations += reduced * min(units, 2) + (micro - reduced) * units
        return self._count(case, calls, synchronizations)

    def _reductions(self, case: Case) -> CallCount:
        times = case.batch.gradient_accumulation_steps if self.level.reduce_frequency == "micro_batch" else 1
        # that of the root follows that of the first layer
        return self._count(case, times * (self.of_layers + 1), times * self.of_layers)

    def _count(self, case: Case, calls: int, synchronizations: int) -> CallCount:
        # in a model of the workload's own, the root may multiply matrices in front of the layers
        is_known = (
            self.is_in_order
            and not self.is_split
            and self.of_layers
            and workload_of(case).tensor_shapes() is not None
        )
        return CallCount(calls, synchronizations if is_known else None)


def padded_parameters(case: Case, parameters: float, shards: int) -> float:
    """The *parameters* of *case* with the rows of each tensor padded to a multiple of *shards*.

    Without padding if the workload does not report the shapes of these parameters.
    """
    shapes = workload_of(case).tensor_shapes()
    if shapes is None or sum(map(math.prod, shapes)) != parameters:
        return parameters
    return _padded(shapes, shards)


def _root_elements(case: Case, parameters: float, shards: int) -> float | None:
    """Elements of the root of a model with *parameters*; None: unknown."""
    workload = workload_of(case)
    shapes = workload.tensor_shapes()
    if shapes is not None and sum(map(math.prod, shapes)) == parameters:
        model = workload.layer_shapes()
        return None if model is None else _padded(model.outside, shards)
    # a plan of fully sharded cases is not worth a process that constructs the model
    stages = None if workload.reads_model else stages_of(case)
    if stages is None:
        return None
    layers, outside = sum(stages.layer_parameters), stages.embedding_parameters + stages.head_parameters
    is_whole = layers + outside - stages.tied_parameters == parameters
    return parameters - layers if is_whole else None


def _padded(shapes: Iterable[Shape], shards: int) -> int:
    return sum(-(-shape[0] // shards) * shards * math.prod(shape[1:]) for shape in shapes)
