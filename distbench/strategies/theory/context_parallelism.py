"""Requirements and traffic of context parallelism. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.units import nearest_multiples
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.requirements import transform_problem, undeclared_problem
from distbench.workloads.base import workload_of
from distbench.workloads.splits import divisibility_problem

if TYPE_CHECKING:
    from distbench.workloads.context import ContextSplit


AttentionExchange = Literal["ulysses", "ring"]
_LOGSUMEXP_ALIGNMENT = 32
"""Positions to a multiple of which CUDA's memory-efficient kernel, the one for fp32, pads logsumexps. torch
2.13 merges those of two chunks as if they were not padded (``_SDPAMerger``)."""


@dataclass(frozen=True)
class ContextParallelism:
    """Sequences split by position across ``ranks`` ranks that share them."""

    ranks: int
    implementation: AttentionExchange = "ulysses"

    def problem(self, case: Case) -> str | None:
        """Reason why *case* can't be trained with it; None if it can."""
        context = workload_of(case).context_split()
        if context is None:
            parts = "which modules are attention (only these may mix positions)"
            methods = "context_split() and shard_sequence()"
            return undeclared_problem(case, "context parallelism", parts, methods, "transformer")
        if reason := context.unsupported_reason or self._divisibility_problem(context, case):
            return f"context parallelism over {self.ranks} devices: {reason}"
        if self.implementation == "ring" and not context.is_full_attention:
            return (
                "ring attention does not support a sliding window; use implementation: ulysses, or "
                "attention: full"
            )
        if self.implementation == "ring" and case.precision.compute == "fp64":
            return "ring attention accumulates in fp32; with fp64 use implementation: ulysses"
        return transform_problem(case, "context parallelism")

    def _divisibility_problem(self, context: ContextSplit, case: Case) -> str | None:
        if self.implementation == "ulysses":
            return self._ulysses_problem(context)
        # each rank has a chunk from the front and one from the back, to balance causal attention
        parts, positions = 2 * self.ranks, context.seq_len
        is_padded = case.device == "cuda" and case.precision.compute == "fp32"
        whole = parts * (_LOGSUMEXP_ALIGNMENT if is_padded else 1)
        if positions % whole == 0:
            return None
        each = (
            f", in fp32 on CUDA each of a multiple of {_LOGSUMEXP_ALIGNMENT} positions" if is_padded else ""
        )
        return (
            f"ring attention splits sequences into {parts} chunks, 2 per device{each}, but seq_len = "
            f"{positions} is not divisible by {whole}; use seq_len: {nearest_multiples(whole, positions)}"
        )

    def _ulysses_problem(self, context: ContextSplit) -> str | None:
        heads, positions = {"heads": context.heads, "kv_heads": context.kv_heads}, context.seq_len
        reason = divisibility_problem({**heads, "seq_len": positions}, self.ranks)
        if reason and positions % self.ranks and not divisibility_problem(heads, self.ranks):
            return f"{reason}; or use seq_len: {nearest_multiples(self.ranks, positions)}"
        return reason

    def required_settings(self, case: Case) -> dict[str, Any]:
        """Settings of it that ``Engine.effective_settings`` must report."""
        context = workload_of(case).context_split()
        positions = context.seq_len // self.ranks if context else None
        return {
            "mesh.cp": self.ranks,
            "context_parallel": self.implementation,
            "positions_per_rank": positions,
        }

    def traffic(self, case: Case, samples: int) -> list[ExpectedCollective]:
        """Collectives of a rank in a step over the dimension ``cp``, for *samples* that it shares.

        Jacobs et al. 2023 (DeepSpeed-Ulysses, arXiv:2309.14509, section 3.2): in the forward pass each layer
        exchanges queries, keys, values and the output, and in the backward pass the gradients of all four.
        With grouped heads, keys and values are smaller in proportion. A recomputed layer repeats its forward
        exchanges.

        torch's ring (``torch.distributed.tensor.experimental``, 2.13): keys and values are all-gathered
        forward and backward, and their gradients, in fp32, pass around all devices in all-to-alls in which
        each sends to the next.
        """
        context = workload_of(case).context_split()
        if self.ranks == 1 or context is None:
            return []
        passes = 2 if case.activation_checkpointing == "none" else 3
        element, layers = DTYPE_BYTES[case.precision.compute], context.layers
        calls = layers * case.batch.gradient_accumulation_steps
        if self.implementation == "ulysses":
            size = (
                passes
                * samples
                * context.seq_len
                // self.ranks
                * context.attention_values_per_position
                * element
            )
            # those of queries, keys and values follow one another
            return [
                ExpectedCollective("all_to_all", float(size), "cp", passes * 4 * calls, passes * 2 * calls)
            ]
        # grouped keys and values are repeated to the number of query heads
        both = 2 * layers * samples * context.seq_len * context.heads * context.head_dim
        gathers, sends = passes * calls, self.ranks * calls
        return [
            ExpectedCollective("all_gather", float(passes * both * element), "cp", gathers, gathers),
            ExpectedCollective("all_to_all", float(both * DTYPE_BYTES["fp32"]), "cp", sends, sends),
        ]
