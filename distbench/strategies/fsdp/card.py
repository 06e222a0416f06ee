"""What FSDP shards, moves and keeps by theory, for each way of sharding."""

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
            "Parameters, gradients and optimizer state. A layer's parameters are gathered before its forward "
            "and before its backward pass, and freed after each.",
            _DOCS,
        ),
        Claim(
            "moves",
            "3 x the parameters per step where DDP moves 2 x: two all-gathers and a reduce-scatter, each "
            "again for every micro-batch.",
            ZERO_PAPER,
        ),
        Claim("keeps", "All model states divided by the ranks, and one gathered layer.", ZERO_PAPER),
        Claim("take it if", "the model does not fit on one device.", PYTORCH_OVERVIEW),
    ),
)
GRAD_OP = Card(
    shards="all but parameters in use",
    claims=(
        Claim(
            "shards",
            "As sharded whole, but parameters stay gathered from the forward to the backward pass "
            "(reshard_after_forward=False).",
            _DOCS,
        ),
        Claim("moves", "2 x the parameters per step: one all-gather and a reduce-scatter.", _DOCS),
        Claim(
            "keeps",
            "All model states divided by the ranks; between the passes all parameters.",
            _DOCS,
        ),
        Claim(
            "take it if", "all parameters fit on one device, but not gradients and optimizer state as well."
        ),
    ),
)
HYBRID = Card(
    shards="all, within groups",
    claims=(
        Claim("shards", "All model states within groups of ranks; each group has a copy (2D mesh).", _DOCS),
        Claim(
            "moves",
            "Within a group as if sharded whole, and an all-reduce of the sharded gradients across groups.",
            _DOCS,
        ),
        Claim("keeps", "All model states divided by the ranks of a group.", _DOCS),
        Claim(
            "take it if", "the shards fit on one node, and links between nodes are slower than those inside."
        ),
    ),
)
IN_BACKWARD = Card(
    shards="all",
    claims=(
        Claim(
            "shards",
            "As without: parameters, gradients and optimizer state. Each shard is updated as soon as its "
            "gradient is reduced.",
            TUTORIAL,
        ),
        Claim("moves", "As without: a gradient is reduced once, and then used up.", TUTORIAL),
        Claim(
            "keeps",
            "Parameters and optimizer state divided by the ranks; of gradients those of one layer at a time, "
            "divided by the ranks.",
            TUTORIAL,
        ),
        Claim(
            "take it if",
            "shards of the gradients are what does not fit, and nothing needs all of them at once: neither "
            "clipping nor accumulation. The more ranks, the less there is to save.",
        ),
    ),
)
SPLIT = Card(
    shards="all, and every layer",
    claims=(
        Claim(
            "shards",
            "Each layer is cut over neighbouring ranks, which work on the same rows (tensor parallelism); "
            "what is left of it is sharded over the others as without that.",
            _MEGATRON,
        ),
        Claim(
            "moves",
            "Between ranks with the same rows activations, in every layer; between the others parameters and "
            "gradients, as sharding does, of a part of the model.",
            _MEGATRON,
        ),
        Claim(
            "keeps", "All model states divided by the ranks, but for norms; part of a gathered layer.", _DOCS
        ),
        Claim(
            "take it if",
            "there are more devices than the batch has samples for, or a gathered layer does not fit; cut "
            "layers inside a node, where links are fast, and shard across nodes.",
            _MEGATRON,
        ),
    ),
)
CARDS = {"full": FULL, "grad_op": GRAD_OP, "hybrid": HYBRID}
"""By ``sharding``."""
