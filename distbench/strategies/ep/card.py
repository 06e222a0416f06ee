"""Card of expert parallelism."""

from __future__ import annotations

from distbench.strategies.description import USE_IF, Card, Claim

_GSHARD = "https://arxiv.org/abs/2006.16668"
_SWITCH = "https://arxiv.org/abs/2101.03961"

CARD = Card(
    shards="experts",
    claims=(
        Claim(
            "shards",
            "The experts of each layer, with their gradients and optimizer state: each rank has some of "
            "them, and its own samples. All other parameters are replicated.",
            _GSHARD,
        ),
        Claim(
            "moves",
            "Every token to each of its experts and back, in the forward and in the backward pass: four "
            "all-to-alls per layer; and an all-reduce of the gradients of all other parameters.",
            _GSHARD,
        ),
        Claim(
            "keeps",
            "Model states of the experts divided by the ranks that share them, all others replicated; and "
            "the tokens of a rank's experts, as many as the router sends.",
            _SWITCH,
        ),
        Claim(
            USE_IF,
            "experts are most of the model, and a rank has tokens for few of them; and the links carry the "
            "tokens faster than the gradients of all experts.",
            _SWITCH,
        ),
    ),
)
