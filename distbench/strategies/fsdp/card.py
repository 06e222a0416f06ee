"""Cards of FSDP, one for each way of sharding."""

from __future__ import annotations

from distbench.strategies._in_backward import TUTORIAL
from distbench.strategies.description import PYTORCH_OVERVIEW, ZERO_PAPER, Card, Claim

_MEGATRON = "https://arxiv.org/abs/1909.08053"
_DOCS = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"

FULL = Card(
    shards="all",
    claims=(
        Claim(
            "shards",
            "Parameters, gradients and optimizer state. A layer's parameters are all-gathered before its "
            "forward and before its backward pass, and freed after each.",
            _DOCS,
        ),
        Claim(
            "moves",
            "3 x the parameters per step (DDP: 2 x): two all-gathers and a reduce-scatter, all repeated for "
            "every micro-batch.",
            ZERO_PAPER,
        ),
        Claim("keeps", "All model states divided by the ranks, and one unsharded layer.", ZERO_PAPER),
        Claim("use it if", "the model does not fit on one device.", PYTORCH_OVERVIEW),
    ),
)
GRAD_OP = Card(
    shards="all but parameters in use",
    claims=(
        Claim(
            "shards",
            "As with full sharding, but parameters stay unsharded from the forward to the backward pass "
            "(reshard_after_forward=False).",
            _DOCS,
        ),
        Claim("moves", "2 x the parameters per step: one all-gather and a reduce-scatter.", _DOCS),
        Claim(
            "keeps",
            "All model states divided by the ranks; between the passes, all parameters unsharded.",
            _DOCS,
        ),
        Claim(
            "use it if", "all parameters fit on one device, but not gradients and optimizer state as well."
        ),
    ),
)
HYBRID = Card(
    shards="all, within groups",
    claims=(
        Claim("shards", "All model states inside groups of ranks, one replica per group (2D mesh).", _DOCS),
        Claim(
            "moves",
            "As with full sharding inside a group, plus an all-reduce of gradient shards across groups.",
            _DOCS,
        ),
        Claim("keeps", "All model states divided by the ranks of a group.", _DOCS),
        Claim(
            "use it if", "the shards fit on one node, and links between nodes are slower than those inside."
        ),
    ),
)
IN_BACKWARD = Card(
    shards="all",
    claims=(
        Claim(
            "shards",
            "The same as without it: parameters, gradients and optimizer state. Each shard is updated as "
            "soon as its gradient is reduced.",
            TUTORIAL,
        ),
        Claim("moves", "The same as without it: a gradient is reduced once, and then consumed.", TUTORIAL),
        Claim(
            "keeps",
            "Parameters and optimizer state divided by the ranks; gradients of one layer at a time, divided "
            "by the ranks.",
            TUTORIAL,
        ),
        Claim(
            "use it if",
            "everything but the gradient shards fits, and nothing needs all of them at once: no clipping, no "
            "accumulation. The more ranks, the less there is to save.",
        ),
    ),
)
TENSOR_PARALLEL = Card(
    shards="all, and every layer",
    claims=(
        Claim(
            "shards",
            "Each layer is split across neighbouring ranks, which process the same samples (tensor "
            "parallelism); the parts are sharded across the data-parallel ranks.",
            _MEGATRON,
        ),
        Claim(
            "moves",
            "Activations in every layer between tensor-parallel ranks; parameters and gradients of a rank's "
            "part of the model between data-parallel ranks, as with plain sharding.",
            _MEGATRON,
        ),
        Claim(
            "keeps", "All model states except norms divided by the ranks; part of an unsharded layer.", _DOCS
        ),
        Claim(
            "use it if",
            "there are more devices than samples in the batch, or an unsharded layer does not fit; split "
            "layers inside a node, where links are fast, and shard across nodes.",
            _MEGATRON,
        ),
    ),
)
HYBRID_TENSOR_PARALLEL = Card(
    shards="all within groups, and every layer",
    claims=(
        Claim(
            "shards",
            "Each layer is split across neighbouring ranks, which process the same samples (tensor "
            "parallelism); the parts are sharded inside groups of ranks and replicated across groups (3D "
            "mesh).",
            _MEGATRON,
        ),
        Claim(
            "moves",
            "Activations in every layer between tensor-parallel ranks; parameters and gradients of a rank's "
            "part of the model inside a group, as with plain sharding; its gradient shards are all-reduced "
            "across groups.",
            _DOCS,
        ),
        Claim(
            "keeps",
            "All model states except norms divided by the ranks of a group; part of an unsharded layer.",
            _DOCS,
        ),
        Claim(
            "use it if",
            "layers have to be split, and all-gathers over every other device are too slow: split layers "
            "inside a node, shard over neighbouring nodes, and replicate across the slowest links.",
            _MEGATRON,
        ),
    ),
)
CARDS = {"full": FULL, "grad_op": GRAD_OP, "hybrid": HYBRID}
"""Card of each value of ``sharding``."""
