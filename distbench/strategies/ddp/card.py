"""What DDP shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import (
    ALL_STATES,
    PYTORCH_OVERVIEW,
    TAKE_IT,
    ZERO_PAPER,
    Card,
    Claim,
)

_DOCS = "https://docs.pytorch.org/docs/stable/notes/ddp.html"
_SHARDED = "https://docs.pytorch.org/docs/stable/distributed.optim.html"

PLAIN = Card(
    "nothing",
    (
        Claim("shards", "Nothing: every rank has a copy of the model and samples of its own.", _DOCS),
        Claim(
            "moves",
            "2 x the parameters per step: an all-reduce of the gradients during the backward pass.",
            ZERO_PAPER,
        ),
        Claim("keeps", ALL_STATES, ZERO_PAPER),
        Claim(TAKE_IT, "the model fits on one device.", PYTORCH_OVERVIEW),
    ),
)
SHARDED_OPTIMIZER = Card(
    "optimizer state",
    (
        Claim(
            "shards",
            "Optimizer state, by whole tensors: each rank updates its own and broadcasts them.",
            _SHARDED,
        ),
        Claim(
            "moves",
            "3 x the parameters per step: the all-reduce of the gradients, and every updated parameter once.",
            _SHARDED,
        ),
        Claim("keeps", "Parameters and gradients whole, optimizer state divided by the ranks.", ZERO_PAPER),
        Claim(TAKE_IT, "the model fits on one device, but not with its optimizer state."),
    ),
)
