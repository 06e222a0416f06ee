"""Dtypes of a step: their sizes and names; what float8 requires, and what selective checkpointing keeps."""

from typing import Literal

Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
Float8Recipe = Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"]
"""A recipe of torchao: scales per matrix, and products in float8; none: no float8."""
FLOAT8_ALIGNMENT = 16
"""Divisor of every dimension of a float8 matrix product, as torch._scaled_mm requires."""
TORCH_DTYPE_NAMES: dict[str, str] = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""torch's name of each dtype."""
DTYPE_BYTES: dict[str, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element of each dtype."""

SELECTIVE_CHECKPOINT_OPS = (
    *("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "convolution"),
    # torch picks one of these for scaled_dot_product_attention, unless it uses products and a softmax
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
"""ATen operators whose outputs ``activation_checkpointing: selective`` keeps: all that count as model
FLOPs, so only cheap operators are recomputed (norms, activations, casts). torchtitan's ``op`` mode keeps
every second product; the selective recomputation of Korthikanti et al. (arXiv:2205.05198) differs from
both: it recomputes the core of attention."""
