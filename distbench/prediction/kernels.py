"""Kernels of a decoder's layers: how many passes over memory they take, and how fast attention is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.prediction.decoder import DecoderShape
from distbench.system.gpu_data_sheets import Generation

AttentionKernel = Literal["flash", "vendor", "first", "unfused"]
"""FlashAttention-2, as in torch; cuDNN or FlashAttention-3; the first FlashAttention or its Triton port;
products and a softmax."""


@dataclass(frozen=True)
class Kernels:
    """Kernels of one implementation. A pass reads or writes each element once, in the computation's dtype."""

    norm_passes: float
    """Passes over the residual path of a normalization."""
    residual_passes: float
    """Passes over it that add a branch to it."""
    rotary_passes: float
    """Passes over queries, keys and values of rotary positions, and of copies before attention."""
    activation_passes: float
    """Passes over the width of the feed-forward network between its matrices."""
    loss_bytes_per_logit: float
    """Bytes for each logit in loss and its gradient."""
    attention: AttentionKernel
    cast_bytes_per_element: float
    """Bytes for each element that a product in float8 reads, to scale and cast it."""
    launch_s: float
    """Seconds in which the host launches a layer's forward pass."""

    def layer_passes(self, decoder: DecoderShape) -> float:
        """Passes of a layer's forward pass over its residual path."""
        projected = self.rotary_passes * decoder.queries_keys_values / decoder.hidden
        inner = self.activation_passes * decoder.ffn / decoder.hidden
        return 2 * (self.norm_passes + self.residual_passes) + projected + inner


EAGER = Kernels(
    # RMSNorm in fp32 of single operators: cast 3, square and mean 4, two products 6, cast 3
    norm_passes=16,
    residual_passes=3,
    # product in fp32: cast 3, product 4, cast 3; then keys and values are copied
    rotary_passes=10,
    # silu 2, product 3
    activation_passes=5,
    # to fp32 6, log-softmax 8, its gradient 8, to bf16 6
    loss_bytes_per_logit=28,
    attention="flash",
    # maximum 2, scale and cast 3, transposed copy 2
    cast_bytes_per_element=7,
    # about 60 operators of 6 to 10 us
    launch_s=500e-6,
)
"""Operators of torch one by one."""
COMPILED = Kernels(
    norm_passes=3,
    residual_passes=3,
    rotary_passes=3,
    activation_passes=3,
    loss_bytes_per_logit=20,
    attention="flash",
    cast_bytes_per_element=7,
    launch_s=150e-6,
)
"""Layers under torch.compile: a kernel reads and writes once what several operators would."""

BACKWARD_PASSES = 1.6
"""Passes of the backward pass by those of the forward pass: it reads saved tensors beside gradients."""

_ATTENTION: dict[tuple[AttentionKernel, Generation], float] = {
    # about what FlashAttention-2 (arXiv:2307.08691, section 4) and 3 (arXiv:2407.08608: 35 % of an H100) have
    ("flash", "ampere"): 0.62,
    ("flash", "hopper"): 0.36,
    # FlashAttention-3, section 4, with cuDNN beside it: forward and backward together, about
    ("vendor", "ampere"): 0.62,
    ("vendor", "hopper"): 0.58,
    # chosen: 1.7 and 1.4 times slower than the second version
    ("first", "ampere"): 0.36,
    ("first", "hopper"): 0.25,
    # chosen: no measurement was found that has a backward pass
    ("flash", "ada"): 0.5,
    ("flash", "blackwell"): 0.5,
    ("vendor", "blackwell"): 0.5,
    ("flash", "cdna"): 0.3,
}
"""Share of the peak for long rows."""
_HALF_LENGTH = 512
"""Length at which attention runs at half of its rate for long rows, in the same figures."""


def attention_efficiency(kernel: AttentionKernel, generation: Generation, length: int) -> float | None:
    """Share of the peak at which *kernel* runs for rows of *length* tokens; None: it multiplies as products.

    GPUs without a kernel of that kind (Volta, Turing) multiply, too.
    """
    share = _ATTENTION.get((kernel, generation))
    return None if share is None else share * length / (length + _HALF_LENGTH)
