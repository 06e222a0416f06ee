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

_HOOKS = "https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html"
_POWERSGD = "https://arxiv.org/abs/1905.13727"
_LOCAL_SGD = "https://arxiv.org/abs/1808.07217"
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
POWERSGD = Card(
    "nothing; gradients compressed",
    (
        Claim("shards", "Nothing: every rank has a copy of the model and samples of its own.", _DOCS),
        Claim(
            "moves",
            "Of a gradient of n x m two matrices of r (n + m) numbers; whole what is a vector or would not "
            "become small enough.",
            _POWERSGD,
        ),
        Claim(
            "keeps",
            "All model states, and one more copy of the gradients: what compression has lost, which is added "
            "to the next ones.",
            _HOOKS,
        ),
        Claim(
            TAKE_IT,
            "the network is so slow that reducing gradients takes most of a step, and a run to a target "
            "shows that it converges as well: it is another training by design.",
            _POWERSGD,
        ),
    ),
)
LOCAL_SGD = Card(
    "nothing; copies averaged",
    (
        Claim("shards", "Nothing: every rank has a copy of the model and samples of its own.", _LOCAL_SGD),
        Claim(
            "moves",
            "2 x the parameters every H steps: the copies are averaged, and nothing is sent in between.",
            _LOCAL_SGD,
        ),
        Claim("keeps", ALL_STATES, ZERO_PAPER),
        Claim(
            TAKE_IT,
            "ranks wait for a slow network or for each other in every step, and a run to a target shows that "
            "it converges as well: it is another training by design.",
            _LOCAL_SGD,
        ),
    ),
)
