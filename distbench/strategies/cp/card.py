"""What context parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import ALL_STATES, TAKE_IT, ZERO_PAPER, Card, Claim

_ULYSSES = "https://arxiv.org/abs/2309.14509"
_RING = "https://arxiv.org/abs/2310.01889"
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
RING = Card(
    shards="positions of each row",
    claims=(
        Claim(
            "shards",
            "The positions of every row: a rank has a part from the front and one from the back, whose "
            "queries meet the keys and values of all.",
            _RING,
        ),
        Claim(
            "moves",
            "Keys and values to all ranks, forward and backward, and the gradients of both round all ranks; "
            "and the all-reduce of the gradients of parameters.",
            _RING,
        ),
        Claim("keeps", f"{ALL_STATES} Activations divided by the ranks.", ZERO_PAPER),
        Claim(
            TAKE_IT,
            "rows are so long that the activations of one do not fit, and there are more ranks than heads to "
            "divide.",
            _RING,
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
