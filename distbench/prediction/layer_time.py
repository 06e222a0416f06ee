"""Seconds of one layer, and of the head, of a micro-batch on one rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from distbench.prediction.decoder import (
    DecoderShape,
    MatrixProduct,
    attention_backward_flops,
    attention_flops,
    backward_products,
    head_product,
    layer_products,
)
from distbench.prediction.hardware import Hardware
from distbench.prediction.kernels import BACKWARD_PASSES, Kernels, attention_efficiency
from distbench.prediction.layout import StepLayout

_ROW_CAST = 2.0
_BLOCK_CAST = 1.3
"""Bytes to cast with a scale for each row, or block, by those with one for each tensor: cast twice, once for
each side that a product takes it from."""
_UNSPLIT = 0.35
"""Share of the passes that every rank of tensor parallelism makes over whole activations: norms and residual
path, unless sequences are split."""
_RING = 0.75
"""Rate of attention over blocks that go round a ring, by that over whole rows."""
_UNFUSED = 0.54
"""Rate of products of the width of a head, by that of large ones."""
_SCORE_PASSES = 5
"""Passes over the scores of unfused attention forward: mask and softmax 2, dropout 3."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer."""

    forward: float
    backward: float
    """With what it computes again."""
    attention: float
    """Of the forward pass."""
    idle: float
    """In which the GPU waits for the host, in both passes."""


@dataclass(frozen=True)
class RankWork:
    """Work of one rank, whose rates are known."""

    decoder: DecoderShape
    layout: StepLayout
    hardware: Hardware
    kernels: Kernels
    flops: float
    """FLOP/s of large products in the dtype of the computation."""
    layer_flops: float
    """Likewise of those inside layers, which may be in float8."""

    def layer(self) -> LayerTime:
        """Seconds of a layer."""
        layout = self.layout
        products = list(layer_products(self.decoder, layout.tokens, layout.tensor))
        multiplied = sum(map(self._layer_product, products))
        of_gradients = sum(self._layer_product(each) for p in products for each in backward_products(p))
        attended, attended_back = self._attention()
        passes = self._passes()
        forward = multiplied + attended + passes
        recomputed = {
            "none": 0.0,
            "full": forward,
            "elementwise": passes,
            "half": multiplied / 2 + passes,
            "attention": attended,
        }[layout.recomputation]
        backward = of_gradients + attended_back + BACKWARD_PASSES * passes + recomputed
        launch = self.kernels.launch_s
        # the backward pass launches about twice as many
        idle = max(0.0, launch - forward) + max(0.0, 2 * launch - backward)
        return LayerTime(forward, backward, attended, idle)

    def head(self) -> float:
        """Seconds of head and loss, forward and backward."""
        product = head_product(self.decoder, self.layout.tokens, self.layout.vocab_ranks)
        logits = self.kernels.loss_bytes_per_logit * product.rows * product.columns / self.hardware.memory
        return logits + sum(self._product(each) for each in (product, *backward_products(product)))

    def _product(self, product: MatrixProduct) -> float:
        """Seconds of *product*: multiplication and memory add up, so that small or thin ones are slower."""
        moved = product.elements * self.layout.element_bytes
        return product.flops / self.flops + moved / self.hardware.memory

    def _layer_product(self, product: MatrixProduct) -> float:
        """Seconds of *product* inside a layer, with casts to float8."""
        cast_factor = {"none": 0.0, "tensor": 1.0, "row": _ROW_CAST, "block": _BLOCK_CAST}[self.layout.float8]
        cast = cast_factor * self.kernels.cast_bytes_per_element * product.operands
        moved = product.elements * self.layout.element_bytes
        return product.flops / self.layer_flops + (moved + cast) / self.hardware.memory

    def _attention(self) -> tuple[float, float]:
        """Seconds of attention forward and backward."""
        layout = self.layout
        flops = attention_flops(self.decoder, layout.tokens, layout.length, layout.tensor)
        share = attention_efficiency(self.kernels.attention, self.hardware.generation, layout.length)
        peak = self.hardware.sheet.peak.for_dtype(layout.dtype, tf32=layout.tf32)
        if share is None or peak is None:
            return self._unfused_attention(2 * flops)
        rate = peak * share * (_RING if layout.context > 1 and layout.exchange != "ulysses" else 1.0)
        return flops / rate, attention_backward_flops(flops) / rate

    def _unfused_attention(self, flops: float) -> tuple[float, float]:
        """Seconds of products over all positions, masked or not, and of passes over their scores."""
        layout = self.layout
        scores = layout.tokens * layout.length * self.decoder.heads / layout.tensor
        passes = _SCORE_PASSES * scores * layout.element_bytes / self.hardware.memory
        multiplied = flops / (self.flops * _UNFUSED)
        return multiplied + passes, 2 * multiplied + BACKWARD_PASSES * passes

    def _passes(self) -> float:
        """Seconds of a layer's passes over activations in its forward pass."""
        layout = self.layout
        unsplit_share = 0.0 if layout.sequence_parallel else _UNSPLIT
        share = unsplit_share + (1 - unsplit_share) / layout.tensor
        elements = self.kernels.layer_passes(self.decoder) * layout.tokens * self.decoder.hidden
        return elements * share * layout.element_bytes / self.hardware.memory


def rank_work(
    decoder: DecoderShape, layout: StepLayout, hardware: Hardware, kernels: Kernels
) -> RankWork | str:
    """Work of a rank, or the reason why no data sheet has the rate of its products."""
    flops = hardware.product_flops(layout.dtype, tf32=layout.tf32)
    inside = hardware.float8_flops if layout.float8 != "none" else flops
    lacking: Iterable[str] = [
        name for name, rate in ((layout.dtype, flops), ("float8", inside)) if rate is None
    ]
    if flops is None or inside is None:
        return f"{hardware.sheet.source} has no peak for {next(iter(lacking))}"
    return RankWork(decoder, layout, hardware, kernels, flops, inside)
