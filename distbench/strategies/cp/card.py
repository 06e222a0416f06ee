"""What context parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import ALL_STATES, TAKE_IT, ZERO_PAPER, Card, Claim

_ULYSSES = "https://arxiv.org/abs/2309.14509"

PLAIN = Card(
    shards="positions of each row",
    claims=(
        Claim(
            "shards",
            "The positions of every row: a rank computes some of them, and in attention all of them for some "
            "of the heads.",
            _ULYSSES,
        ),
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
