"""What context parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import ALL_STATES, TAKE_IT, ZERO_PAPER, Card, Claim

_ULYSSES = "https://arxiv.org/abs/2309.14509"

_FSDP = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
_SHARES = Claim(
    "shards",
    "The positions of every row: a rank computes some of them, and in attention all of them for some of the "
    "heads.",
    _ULYSSES,
)

PLAIN = Card(
    shards="positions of each row",
    claims=(
        _SHARES,
        Claim(
            "moves",
            "Four all-to-alls a layer forward and four backward (queries, keys, values and what comes out, "
            "each of batch x positions / ranks x width numbers), and the all-reduce of the gradients.",
            _ULYSSES,
        ),
        Claim("keeps", f"{ALL_STATES} Activations divided by the ranks.", ZERO_PAPER),
        Claim(
            TAKE_IT,
            "rows are so long that the activations of one do not fit, and the model itself does; and heads "
            "divide by the ranks.",
            _ULYSSES,
        ),
    ),
)
SHARDED = Card(
    shards="positions of each row, and all model states",
    claims=(
        Claim("shards", f"{_SHARES.text} Model states are sharded over all ranks, by layers.", _ULYSSES),
        Claim(
            "moves",
            "The all-to-alls of cp, and what FSDP moves: each layer gathered for the forward and for the "
            "backward pass, its gradients reduce-scattered.",
            _ULYSSES,
        ),
        Claim("keeps", "Model states and activations divided by the ranks, and a gathered layer.", _FSDP),
        Claim(
            TAKE_IT,
            "rows are so long that the activations of one do not fit, nor does the model whole; heads divide "
            "by the ranks that share a row.",
            _ULYSSES,
        ),
    ),
)
