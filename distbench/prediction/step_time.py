"""Time of a step from dimensions, layout and hardware: the same for cases and for published steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from distbench.prediction.collectives import (
    Group,
    all_reduce_seconds,
    exposed_seconds,
    gather_seconds,
    link_problem,
    send_seconds,
)
from distbench.prediction.data_parallel_time import DataParallelTime
from distbench.prediction.decoder import DecoderShape
from distbench.prediction.estimates import NORMAL_95, PredictedValue, StepPrediction, Term
from distbench.prediction.hardware import Hardware
from distbench.prediction.kernels import Kernels
from distbench.prediction.layer_time import LayerTime, RankWork, rank_work
from distbench.prediction.layout import StepLayout

_HIDDEN_TENSOR = 0.8
"""Share of collectives inside layers that overlapped ones hide. Chosen with the published rows in view."""
_INTERLEAVED_SEND = 0.1
"""Share of the sends between stages that interleaved schedules do not hide."""
_SPLIT_BUBBLE = 1 / 3
"""Bubble of schedules that split the backward pass, by that of 1F1B (arXiv:2401.10241, section 2)."""
_SLOWEST = 0.004
"""Share of a step that waiting for the slowest of all ranks adds with each doubling of the nodes."""
_FP32 = 4
"""Bytes of an element in fp32."""
_STEP = 3e-3
"""Seconds of a step that no operator takes: the loop, the optimizer's launches, clipping."""

POOLED = math.log(1.34)
"""Half of the 90 % interval of a step, as a logarithm: never narrower, as predictions of most published rows
are not closer (docs/foresight.md)."""
_UNTRIED = math.log(2)
"""Likewise for generations of GPUs, and scales of float8, of which hardly a step is published."""
TERM_SD: dict[Term, float] = {
    "compute": 0.12,
    "communication": 0.35,
    "bubble": 0.15,
    "update": 0.3,
    "host": 0.5,
}
"""Standard deviation of the rate behind each term, as a logarithm; judged from the spread of published
measurements of GEMMs and collectives, and wider for what no data sheet has."""


@dataclass(frozen=True)
class _StepTime:
    """Seconds of a step's parts."""

    work: RankWork
    layer: LayerTime
    data_parallel: DataParallelTime

    @property
    def terms(self) -> dict[Term, float]:
        layout, layers = self.work.layout, self.data_parallel.layers
        micro_batches = layout.micro_batches
        of_layers = layers * (self.layer.forward + self.layer.backward)
        forward, backward = self._exchange_seconds()
        inside = layers * (forward + backward)
        terms: dict[Term, float] = {
            "compute": micro_batches * (of_layers + self.work.head()),
            "communication": micro_batches * (inside + self._logit_seconds())
            + self.data_parallel.seconds(self.layer.forward, self.layer.backward)
            + self._send_seconds(),
            "bubble": layout.schedules * (layout.stages - 1) / layout.chunks * (of_layers + inside),
            "update": self.data_parallel.updated_parameters * layout.update_bytes / self.work.hardware.memory,
            "host": _STEP + micro_batches * layers * self.layer.idle,
        }
        if layout.splits_backward:
            terms["bubble"] *= _SPLIT_BUBBLE
        nodes = max(1.0, layout.ranks / self.work.hardware.gpus_per_node)
        terms["communication"] += sum(terms.values()) * _SLOWEST * math.log2(nodes)
        return terms

    def _exchange_seconds(self) -> tuple[float, float]:
        """Exposed seconds of collectives inside a layer, in its forward and in its backward pass."""
        layout, (context, context_back) = self.work.layout, self._context_seconds()
        forward = self._tensor_seconds(sums=2) + context
        backward = self._tensor_seconds(layout.backward_all_reduces) + context_back
        return forward, backward + (forward if layout.recomputation == "full" else 0.0)

    def _tensor_seconds(self, sums: int) -> float:
        """Exposed seconds of *sums* all-reduces of activations, or what sequence parallelism has for them."""
        layout = self.work.layout
        size = layout.tokens * self.work.decoder.hidden * layout.element_bytes
        seconds = sums * all_reduce_seconds(size, Group(layout.tensor), self.work.hardware)
        return seconds * (1 - _HIDDEN_TENSOR) if layout.overlaps_tensor else seconds

    def _logit_seconds(self) -> float:
        """Seconds in which the logits of a micro-batch are gathered."""
        layout = self.work.layout
        size = layout.tokens * self.work.decoder.vocab * layout.element_bytes * layout.gathers_logits
        return gather_seconds(size, Group(layout.tensor), self.work.hardware)

    def _context_seconds(self) -> tuple[float, float]:
        """Exposed seconds of what ranks with parts of a row exchange, forward and backward.

        All-to-alls of queries, keys, values and outputs; or keys and values in a ring, beside attention, and
        in the backward pass their gradients with them.
        """
        layout, decoder = self.work.layout, self.work.decoder
        group = Group(layout.context, layout.tensor)
        element_bytes = layout.tokens * layout.element_bytes / layout.tensor
        if layout.exchange == "ulysses":
            columns = decoder.queries_keys_values + decoder.heads * decoder.head_dim
            seconds = gather_seconds(columns * element_bytes, group, self.work.hardware)
            return seconds, seconds
        is_repeated = layout.exchange == "repeated_ring"
        heads = decoder.heads if is_repeated else decoder.kv_heads
        columns = 2 * heads * decoder.head_dim * layout.context
        ring = gather_seconds(columns * element_bytes, group, self.work.hardware)
        back = ring * (1 + (_FP32 if is_repeated else layout.element_bytes) / layout.element_bytes)
        attention = self.layer.attention
        return exposed_seconds(ring, attention), exposed_seconds(back, 2 * attention)

    def _send_seconds(self) -> float:
        """Exposed seconds of activations and gradients between stages."""
        layout = self.work.layout
        if layout.stages == 1:
            return 0.0
        cut = layout.tensor if layout.sequence_parallel else 1
        size = layout.tokens * self.work.decoder.hidden * layout.element_bytes / cut
        both = 2 * send_seconds(size, Group(layout.stages, layout.stage_ranks), self.work.hardware)
        if layout.chunks > 1:
            return _INTERLEAVED_SEND * layout.micro_batches * layout.chunks * both
        return (layout.micro_batches + layout.schedules * (layout.stages - 1)) * both


def predicted_step(
    decoder: DecoderShape, layout: StepLayout, hardware: Hardware, kernels: Kernels
) -> StepPrediction | str:
    """Predicted time of a step, or the reason why a rate that it follows from is unknown."""
    work = rank_work(decoder, layout, hardware, kernels)
    if isinstance(work, str):
        return work
    tables = 1 if decoder.tied or layout.stages > 1 else 2
    data_parallel = DataParallelTime(
        layout,
        hardware,
        math.ceil(decoder.layers / layout.stages),
        decoder.layer_parameters / layout.tensor,
        tables * decoder.vocab * decoder.hidden / layout.vocab_ranks,
    )
    inner = [Group(layout.tensor), Group(layout.context, layout.tensor)]
    line = Group(layout.stages, layout.stage_ranks)
    if reason := link_problem([*inner, *data_parallel.groups, line], hardware):
        return reason
    terms = _StepTime(work, work.layer(), data_parallel).terms
    is_tried = hardware.has_published_steps and layout.float8 not in ("row", "block")
    return StepPrediction(terms, _estimate(terms, POOLED if is_tried else _UNTRIED), "data sheet")


def _estimate(terms: dict[Term, float], least: float) -> PredictedValue:
    """Sum of *terms* with an interval from their rates, of *least* logarithms to both sides or more."""
    value = sum(terms.values())
    parts = (seconds / value * TERM_SD[term] for term, seconds in terms.items())
    propagated = NORMAL_95 * math.sqrt(sum(part * part for part in parts))
    return PredictedValue.with_relative_sd(value, max(propagated, least) / NORMAL_95)
