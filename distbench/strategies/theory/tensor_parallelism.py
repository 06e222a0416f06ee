"""Requirements, traffic and parameters of tensor parallelism. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.units import nearest_multiples
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.requirements import fused_sgd_problem, transform_problem, undeclared_problem
from distbench.workloads.base import workload_of

# tried with blocks compiled after they were split, as torchtitan does: tp fails, and fsdp with mesh: {tp: 2}
# trains, but its gradient of the embedding is off by 0.6 of its size
_UNCOMPILED = (
    "compile is not supported with tensor parallelism: with torch 2.13 the backward pass of compiled layers "
    "that are split fails ('Tensor' object has no attribute '_local_tensor') or gives wrong gradients; use "
    "compile: false"
)


@dataclass(frozen=True)
class TensorParallelism:
    """Layers of a case split across ``ranks`` ranks that process the same samples."""

    ranks: int
    sequence_parallel: bool
    """Activations between layers are split by position."""
    loss_parallel: bool
    """The loss is computed from logits that are split by class."""

    @property
    def label_parts(self) -> tuple[str, ...]:
        """Parts of a label that describe it."""
        return tuple(
            name for name, is_on in {"sp": self.sequence_parallel, "lp": self.loss_parallel}.items() if is_on
        )

    @property
    def required_settings(self) -> dict[str, Any]:
        """Settings of it that ``Engine.effective_settings`` must report."""
        return {
            "mesh.tp": self.ranks,
            # on one rank nothing is split
            "sequence_parallel": self.sequence_parallel and self.ranks > 1,
            "loss_parallel": self.loss_parallel,
        }

    @property
    def option_problem(self) -> str | None:
        """Reason why one of its options has no effect; None if it has several ranks, or no such option."""
        if self.ranks > 1 or not (self.sequence_parallel or self.loss_parallel):
            return None
        option = "sequence_parallel" if self.sequence_parallel else "loss_parallel"
        return f"{option} needs tensor parallelism; set mesh: {{tp: 2}}"

    def problem(self, case: Case) -> str | None:
        """Reason why *case* can't be trained with it; None if it can."""
        splits = workload_of(case).tensor_splits()
        if splits is None:
            return undeclared_layers(case)
        if reason := splits.problem(self.ranks):
            return f"tensor parallelism over {self.ranks} devices: {reason}"
        if self.sequence_parallel and splits.sequence_parallel_problem:
            return f"sequence_parallel: {splits.sequence_parallel_problem}; use sequence_parallel: false"
        if self.sequence_parallel and splits.seq_len % self.ranks:
            return (
                f"sequence_parallel: seq_len = {splits.seq_len} is not divisible by {self.ranks} "
                f"devices; use seq_len: {nearest_multiples(self.ranks, splits.seq_len)}"
            )
        if case.compile != "none":
            return _UNCOMPILED
        return fused_sgd_problem(case) or transform_problem(case, "tensor parallelism")

    def parameters_per_rank(self, case: Case, parameters: int) -> int:
        """Parameters per device out of *parameters*: norms in full, and a share of everything else."""
        if self.ranks == 1:
            return parameters
        splits = workload_of(case).tensor_splits()
        whole = splits.replicated_parameters if splits else 0
        return whole + (parameters - whole) // self.ranks

    def traffic(
        self, case: Case, samples: int, norms: float, *, reductions: int = 1, passes: int = 1
    ) -> list[ExpectedCollective]:
        """Collectives of a rank in a step for *samples* samples, over the dimension ``tp``.

        Under sequence parallelism, *norms* bytes are reduced for each parameter of a norm, in *reductions*
        reductions of each tensor. Each micro-batch runs in *passes* passes, of some samples each.

        Megatron-LM (arXiv:1909.08053, figure 4): one all-reduce forward and one backward for each region,
        including those of the embedding and the head, and the logits. Under sequence parallelism
        (arXiv:2205.05198, figure 5) each is an all-gather and a reduce-scatter of the same size. A recomputed
        layer enters its regions again, and leaves all but the last, where torch stops.
        """
        if self.ranks == 1 or (splits := workload_of(case).tensor_splits()) is None:
            return []
        positions, element = samples * splits.seq_len, DTYPE_BYTES[case.precision.compute]
        again = case.activation_checkpointing != "none"
        once = positions * splits.hidden_size * element
        entering = leaving = 2 * splits.regions + 2
        if again:
            entering, leaving = entering + splits.regions, leaving + splits.regions - splits.layers
        micro = case.batch.gradient_accumulation_steps * passes
        logits = (
            _Volume()
            if self.loss_parallel
            else _Volume(positions * splits.vocab_size * element, micro, synchronizations=micro)
        )
        # maximum, sum and loss of each position, in fp32 at least
        of_loss = (
            _Volume(3 * positions * max(DTYPE_BYTES["fp32"], element), 3 * micro, synchronizations=micro)
            if self.loss_parallel
            else _Volume()
        )
        enters = _Volume(entering * once, entering * micro)
        # each pass ends with leaving the first layer, and the next one begins with leaving the embedding
        leaves = _Volume(leaving * once, leaving * micro, synchronizations=leaving * micro - (micro - 1))
        if not self.sequence_parallel:
            sums = {"all_gather": logits, "all_reduce": leaves + of_loss}
        else:
            whole = _Volume(splits.replicated_parameters * norms, splits.replicated_tensors * reductions)
            sums = {"all_gather": logits + enters, "reduce_scatter": leaves, "all_reduce": whole + of_loss}
        return [
            ExpectedCollective(op, each.bytes, "tp", each.calls, each.synchronizations)
            for op, each in sums.items()
            if each.bytes
        ]


@dataclass(frozen=True)
class _Volume:
    """Bytes and number of some collectives, and number of synchronizations among these."""

    bytes: float = 0.0
    calls: int = 0
    synchronizations: int = 0

    def __add__(self, other: _Volume) -> _Volume:
        return _Volume(
            self.bytes + other.bytes, self.calls + other.calls, self.synchronizations + other.synchronizations
        )


def undeclared_layers(case: Case) -> str:
    """Reason why a workload that declares no splits can't be trained in this way."""
    parts = "which linear layers are split by outputs and which by inputs, its embedding and its head"
    return undeclared_problem(case, "tensor parallelism", parts, "tensor_splits()", "transformer", "tp_plan")
