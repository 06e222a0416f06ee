"""Card of DDP."""

from __future__ import annotations

from distbench.strategies.description import (
    ALL_STATES_TEXT,
    PYTORCH_OVERVIEW,
    USE_IF,
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
        Claim("shards", "Nothing: every rank has a replica of the model and its own samples.", _DOCS),
        Claim(
            "moves",
            "2 x the parameters per step: an all-reduce of the gradients during the backward pass.",
            ZERO_PAPER,
        ),
        Claim("keeps", ALL_STATES_TEXT, ZERO_PAPER),
        Claim(USE_IF, "the model fits on one device.", PYTORCH_OVERVIEW),
    ),
)
SHARDED_OPTIMIZER = Card(
    "optimizer state",
    (
        Claim(
            "shards",
            "Optimizer state, by whole tensors: each rank updates its own tensors and broadcasts them.",
            _SHARDED,
        ),
        Claim(
            "moves",
            "3 x the parameters per step: an all-reduce of the gradients, and every updated parameter once.",
            _SHARDED,
        ),
        Claim("keeps", "All parameters and gradients; optimizer state divided by the ranks.", ZERO_PAPER),
        Claim(USE_IF, "the model fits on one device, but not with its optimizer state."),
    ),
)
POWERSGD = Card(
    "nothing; gradients compressed",
    (
        Claim("shards", "Nothing: every rank has a replica of the model and its own samples.", _DOCS),
        Claim(
            "moves",
            "For an n x m gradient, two matrices with r (n + m) elements in all; vectors, and tensors that "
            "would not shrink enough, are sent whole.",
            _POWERSGD,
        ),
        Claim(
            "keeps",
            "All model states, and an error buffer as large as the gradients: what compression has lost, "
            "which is added to the next gradients.",
            _HOOKS,
        ),
        Claim(
            USE_IF,
            "the network is so slow that reducing gradients takes most of a step, and a run to a target "
            "shows that it converges as well: it is a different training by design.",
            _POWERSGD,
        ),
    ),
)
LOCAL_SGD = Card(
    "nothing; replicas averaged",
    (
        Claim("shards", "Nothing: every rank has a replica of the model and its own samples.", _LOCAL_SGD),
        Claim(
            "moves",
            "2 x the parameters every H steps: the replicas are averaged, and nothing is sent in between.",
            _LOCAL_SGD,
        ),
        Claim("keeps", ALL_STATES_TEXT, ZERO_PAPER),
        Claim(
            USE_IF,
            "ranks wait for a slow network or for each other in every step, and a run to a target shows that "
            "it converges as well: it is a different training by design.",
            _LOCAL_SGD,
        ),
    ),
)
