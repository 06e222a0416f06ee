"""Traffic and model states of data parallelism, replicated or sharded, from one table. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench import optimizers
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES, Dtype
from distbench.strategies.description import UNKNOWN_CALLS, CallCount, ExpectedCollective

ModelState = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True)
class ShardingLevel:
    """Model states that data-parallel ranks shard, and how often they communicate for it.

    Rajbhandari et al. 2020 (arXiv:1910.02054), sections 5 and 7.
    """

    sharded: frozenset[ModelState] = frozenset()
    """Kinds of model state of which each rank has a part; ``optimizer`` includes the master weights."""
    gather_frequency: Literal["never", "step", "micro_batch", "pass"] = "never"
    """How often parameters are all-gathered: ``pass`` is once forward and once backward."""
    reduce_frequency: Literal["step", "micro_batch"] = "step"
    """How often gradients are reduced: sharded ones after each micro-batch."""
    reduce_op: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    """Operation that reduces gradients over the ranks that shard."""

    def traffic(
        self,
        case: Case,
        parameters: float,
        *,
        shards: int = 1,
        replicas: int = 1,
        dimension: str | None = None,
        gathered: float | None = None,
        reduced: float | None = None,
        gathers: CallCount = UNKNOWN_CALLS,
        reductions: CallCount = UNKNOWN_CALLS,
    ) -> list[ExpectedCollective]:
        """Collectives of a rank in a step that exchange the gradients and values of its *parameters*.

        They are sharded over *shards* ranks in each of *replicas* replicas, over which the shards of the
        gradients are all-reduced.

        Args:
            dimension: Dimension of the device mesh; None: ``dp_shard`` and ``dp_replicate``.
            gathered: Elements all-gathered in a step, if the level does not decide it.
            reduced: Elements reduced at once, if they are padded.
            gathers: Number of all-gathers.
            reductions: Number of reductions over each dimension.
        """
        precision, micro_batches = case.precision, case.batch.gradient_accumulation_steps
        times = {"never": 0, "step": 1, "micro_batch": micro_batches, "pass": 2 * micro_batches}
        reduced = parameters if reduced is None else reduced
        reduced_bytes = times[self.reduce_frequency] * reduced * DTYPE_BYTES[precision.reduce]
        moved = []
        if shards > 1:
            over = dimension or "dp_shard"
            gathered = times[self.gather_frequency] * parameters if gathered is None else gathered
            gathered_bytes = gathered * DTYPE_BYTES[precision.compute]
            moved.append(
                ExpectedCollective(
                    "all_gather", gathered_bytes, over, gathers.calls, gathers.synchronizations
                )
            )
            moved.append(
                ExpectedCollective(
                    self.reduce_op, reduced_bytes, over, reductions.calls, reductions.synchronizations
                )
            )
        if replicas > 1:
            over = dimension or "dp_replicate"
            # each follows the reduction of the same gradients over the shards
            is_known = reductions.synchronizations is not None
            synchronizations = 0 if shards > 1 and is_known else reductions.synchronizations
            moved.append(
                ExpectedCollective(
                    "all_reduce", reduced_bytes / shards, over, reductions.calls, synchronizations
                )
            )
        return moved

    def model_states(
        self,
        case: Case,
        parameters: float,
        ranks: int = 1,
        *,
        stored: Dtype | None = None,
        gradients: Dtype | None = None,
        master: Dtype | None = None,
    ) -> dict[str, float]:
        """Bytes of a rank's model states over *ranks* ranks; gradients as they are after the backward pass.

        Rajbhandari et al. 2020 (arXiv:1910.02054, figure 1) have 2 + 2 + K bytes per element, K = 12: 4 of
        master weights and 2 x 4 of Adam's moments. For an optimizer whose state per element depends on the
        matrix, this assumes large ones; callers that know the shapes recompute it.

        Args:
            stored: Dtype of the parameters; None: that of the weights that the optimizer updates.
            gradients: Dtype of their gradients; None: that of the parameters.
            master: Dtype of a second copy that the optimizer updates; None: there is none.
        """
        stored = stored or case.precision.master
        state = optimizers.bytes_per_parameter(case.optimizer, DTYPE_BYTES[case.precision.optimizer_state])
        of_parameters, of_gradients, of_optimizer = (
            ranks if kind in self.sharded else 1 for kind in ("parameters", "gradients", "optimizer")
        )
        return {
            "parameters": parameters * DTYPE_BYTES[stored] / of_parameters,
            "gradients": parameters * DTYPE_BYTES[gradients or stored] / of_gradients,
            "optimizer_state": parameters * state / of_optimizer,
            "master": parameters * DTYPE_BYTES[master] / of_optimizer if master else 0.0,
        }


REPLICATED = ShardingLevel()
FULLY_SHARDED = ShardingLevel(frozenset({"optimizer", "gradients", "parameters"}), "pass", "micro_batch")
ZERO_STAGES = (
    REPLICATED,
    ShardingLevel(frozenset({"optimizer"}), "step"),
    ShardingLevel(frozenset({"optimizer", "gradients"}), "step", "micro_batch"),
    FULLY_SHARDED,
)
"""Levels of ZeRO's stages 0 to 3."""
