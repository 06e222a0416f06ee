"""What a trial is launched for, and what a suite may ask of each kind besides measuring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["measure", "check", "checkpoint", "converge"]

FOLDERS: dict[str, str] = {
    "measure": "trials",
    "check": "checks",
    "checkpoint": "checkpoints",
    "converge": "convergence",
}
"""Kind of job -> folder of its records in that of a run."""


@dataclass(frozen=True)
class Job:
    """What the ranks of a trial do once they have joined."""

    kind: Kind = "measure"
    options: dict[str, Any] = field(default_factory=dict)
    """What they are told besides the case, as plain JSON types; the record keeps it."""


MEASURE = Job()


@dataclass(frozen=True)
class Check:
    """Whether each case is the same training as one process with the whole batch (``--check``)."""

    steps: int = 20
    """Steps that each case and its reference train."""
    sgd_lr: float = 0.1
    """Learning rate of the second training, with SGD: Adam hides gradients that are scaled wrongly."""
    perturbed: int = 8
    """Trainings of the reference with rounding-sized changes: their spread is the envelope."""
    false_alarm: float = 0.001
    """Chance that a training that differs by rounding only is called different."""


@dataclass(frozen=True)
class Checkpoint:
    """Whether each case goes on as the same training from its checkpoints, and from those of others."""

    steps_before: int = 3
    """Steps that each case trains before it saves."""
    steps_after: int = 3
    """Steps that it goes on for, and that it trains again from each checkpoint that it loads."""


@dataclass(frozen=True)
class Converge:
    """Training each case to a target on held-out data, several times, beside the same of one process.

    Every training goes on to ``max_steps``, whenever it reaches the target, so that the values at
    the end can be compared too. The case is trained with the first ``seeds`` seeds from its own on,
    its reference (``single`` with the same global batch) with twice as many.
    """

    targets: dict[str, float]
    """Figure of merit (bits_per_byte, accuracy, ...) -> the value to reach: one for each data source."""
    max_steps: int = 200
    """Optimizer steps of each training."""
    eval_every: int = 20
    """Steps between evaluations on the held-out data; the last step is evaluated too."""
    eval_samples: int = 256
    """Held-out samples of each evaluation, the same in all of them; fewer if there are fewer."""
    seeds: int = 3
    """Trainings of each case; the reference gets twice as many."""
    gradients_every: int = 20
    """Steps between looks at the gradient of each tensor; 0: never."""
    replicas_every: int = 50
    """Steps between comparisons of the parameters across ranks; 0: never."""
