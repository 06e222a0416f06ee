"""ZeRO's table of model states, generalised to the dtypes in use. Without torch."""

from __future__ import annotations

from distbench.case import BYTES, Case, Dtype, Optimizer


def zero_table(
    case: Case,
    parameters: int,
    *,
    stored: Dtype,
    master: Dtype | None = None,
    shards: tuple[float, float, float] = (1, 1, 1),
) -> dict[str, float]:
    """Return the bytes of a rank's model states, gradients counted when the backward pass has ended.

    *stored* is the dtype of the parameters and of their gradients, *master* that of a second copy
    which the optimizer updates, and *shards* over how many ranks parameters, gradients, and optimizer
    states with the master weights are spread. Rajbhandari et al. 2020 (arXiv:1910.02054, figure 1)
    have 2 + 2 + K bytes an element, K = 12: 4 of master weights and 2 x 4 of Adam's moments.
    """
    of_parameters, of_gradients, of_optimizer = shards
    state = moments(case.optimizer) * BYTES[case.precision.optimizer_state]
    return {
        "parameters": parameters * BYTES[stored] / of_parameters,
        "gradients": parameters * BYTES[stored] / of_gradients,
        "optimizer_state": parameters * state / of_optimizer,
        "master": parameters * BYTES[master] / of_optimizer if master else 0.0,
    }


def moments(optimizer: Optimizer) -> int:
    """Return how many numbers *optimizer* keeps for each parameter."""
    if optimizer.name == "adamw":
        return 2
    return 1 if optimizer.momentum else 0
