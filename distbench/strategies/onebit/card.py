"""Cards of DeepSpeed's 1-bit optimizers."""

from __future__ import annotations

from distbench.strategies.description import USE_IF, Card, Claim

_ADAM = "https://arxiv.org/abs/2102.02888"
_ZERO_ONE = "https://arxiv.org/abs/2202.06009"
_LAMB = "https://arxiv.org/abs/2104.06069"
_REPLICATED = "Nothing: every rank has a replica of the model and its own samples."
_USE_IF = (
    "the network is so slow that reducing gradients takes most of a step, you can stay on DeepSpeed 0.19.6, "
    "and a run to a target shows that it converges as well: it is a different training by design."
)


def _card(paper: str, moves: str, keeps: str) -> Card:
    return Card(
        "nothing; momentum compressed",
        (
            Claim("shards", _REPLICATED, paper),
            Claim("moves", moves, paper),
            Claim("keeps", keeps, paper),
            Claim(USE_IF, _USE_IF, paper),
        ),
    )


CARDS = {
    "adam": _card(
        _ADAM,
        "2 bits per parameter per step once the variance is frozen, and two scales per tensor from each "
        "rank; until then what DDP moves.",
        "All model states, and the errors of both halves of the reduction: as much as the fp32 parameters, "
        "and that divided by the ranks.",
    ),
    "zero_one_adam": _card(
        _ZERO_ONE,
        "2 bits per parameter once the variance is frozen, and two scales per tensor from each rank, every "
        "local_steps steps; until then gradients: in 1 bit like these, or all-reduced to update the "
        "variance.",
        "All model states, the updates not yet sent (as much as the fp32 parameters), and the errors of both "
        "halves of the reduction: as much again, and that divided by the ranks.",
    ),
    "lamb": _card(
        _LAMB,
        "2 bits per parameter per step once the variance is frozen, and two scales from each rank; until "
        "then what DDP moves.",
        "All model states, a second variance (as much as the fp32 parameters), and the errors of both halves "
        "of the reduction: as much again, and that divided by the ranks.",
    ),
}
"""Card of each algorithm."""
