"""What expert parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from distbench.strategies.description import TAKE_IT, Card, Claim

_GSHARD = "https://arxiv.org/abs/2006.16668"
_SWITCH = "https://arxiv.org/abs/2101.03961"

CARD = Card(
    shards="experts",
    claims=(
        Claim(
            "shards",
            "The experts of each layer, with their gradients and optimizer state: each rank has some of "
            "them, and samples of its own. All else is on every rank.",
            _GSHARD,
        ),
        Claim(
            "moves",
            "Every token to each of its experts and back, in the forward and in the backward pass: four "
            "all-to-alls a layer; and an all-reduce of the gradients of all that is no expert.",
            _GSHARD,
        ),
        Claim(
            "keeps",
            "Model states of the experts divided by the ranks that share them, of all else whole; the tokens "
            "that a rank's experts take, which are as many as the router sends.",
            _SWITCH,
        ),
        Claim(
            TAKE_IT,
            "the model has experts, which are most of it, and a rank has tokens for few of them; and the "
            "links carry the tokens faster than the gradients of all experts.",
            _SWITCH,
        ),
    ),
)
