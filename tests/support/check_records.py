"""Made-up evidence of checks: trainings whose differences are drawn, for tests that need no process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from distbench.ipc.trial_files import SKETCH_COLUMNS
from distbench.record import Record
from support.records import case, job_of, measured, with_options

TENSORS = ("embedding", "layer", "head")
BUFFER = "running_mean"
STEPS = 5
LOSSES = (4.0, 3.0, 2.5, 2.2, 2.0)
"""Of the reference, step by step: the first are those of the trials of ``records.measured``."""
PERTURBED = 8
DDP, SINGLE = case("ddp"), case("single", 1)

Noise = Callable[[int, str, str], float]
"""(step, kind, tensor) -> relative size of what is drawn onto the training."""


def rounding(step: int, kind: str, tensor: str) -> float:
    """What fp32 makes: it grows as training amplifies it."""
    return 1e-7 * 1.5 ** max(step, 0)


def none(step: int, kind: str, tensor: str) -> float:
    return 0.0


def training(name: str, random: np.random.Generator, noise: Noise) -> tuple[list[Any], list[Any]]:
    """Return the rows of one training: a decaying loss and moving parameters, with *noise* drawn on them."""
    truth = np.random.default_rng(0)
    directions = {tensor: truth.normal(size=(2, len(SKETCH_COLUMNS))) for tensor in TENSORS}

    def drawn(step: int, kind: str, tensor: str, exact: np.ndarray, of: np.ndarray) -> np.ndarray:
        size = noise(step, kind, tensor)
        return exact + size * np.linalg.norm(of) / 4 * random.normal(size=exact.shape) if size else exact

    def number(step: int, kind: str, exact: float) -> float:
        return float(drawn(step, kind, "", np.array([exact]), np.array([exact]))[0])

    def row(
        step: int, of: str, tensor: str, exact: np.ndarray, *, relative_to: np.ndarray | None = None
    ) -> dict[str, Any]:
        kind = "parameter" if of == "update" else of
        sketch = drawn(step, kind, tensor, exact, exact if relative_to is None else relative_to)
        place = {"training": name, "step": step, "of": of, "tensor": tensor}
        told = {"norm": float(np.linalg.norm(exact)), "digest": sketch.tobytes().hex()[:16]}
        return {**place, **told, **dict(zip(SKETCH_COLUMNS, sketch.tolist(), strict=True))}

    curve, tensors = [], []
    for step in range(-1, STEPS):
        if step >= 0:
            numbers = {"loss": number(step, "loss", LOSSES[step]), "grad_norm": number(step, "norm", 2.0)}
            curve.append({"training": name, "step": step, **numbers})
        for tensor, (start, move) in directions.items():
            if step == 0:
                tensors.append(row(step, "gradient", tensor, move))
            moved = 0.1 * (step + 1) * move
            if step < 0:
                tensors.append(row(step, "parameter", tensor, start))
            else:
                tensors.append(row(step, "update", tensor, moved, relative_to=start + moved))
        tensors.append(row(step, "buffer", BUFFER, np.ones(len(SKETCH_COLUMNS))))
    return curve, tensors


def check_record(of: Any, role: str, trainings: dict[str, Noise], seed: int = 1, **changes: Any) -> Record:
    """Return the record of a check with *trainings* by name."""
    random = np.random.default_rng(seed)
    curve, tensors = [], []
    for name, noise in trainings.items():
        rows = training(name, random, noise)
        curve += rows[0]
        tensors += rows[1]
    options = {"arm": of.optimizer.name, "of": DDP.id, "reference": SINGLE.id, "role": role}
    tables = {"check_curve": curve, "check_tensors": tensors, "check_replicas": [], "check_notes": []}
    record = dataclasses.replace(
        measured(of), job=job_of("check", **options), tables=tables, values={}, samples={}
    )
    return dataclasses.replace(record, **changes)


def reference(seed: int = 1, **more: Noise) -> Record:
    """Return the record of the reference: itself, once more, perturbed, and in fp64."""
    perturbed = {f"perturbed {i + 1}": rounding for i in range(PERTURBED)}
    return check_record(
        SINGLE, "reference", {"fp64": rounding, "reference": none, "repeat": none, **perturbed, **more}, seed
    )


def trained(noise: Noise, seed: int = 2, **changes: Any) -> Record:
    """Return the record of a case."""
    return check_record(DDP, "case", {"case": noise}, seed, **changes)


def differing(of: Any) -> Record:
    """Return the record of a case with one layer's gradient wrong by half."""
    wrong = {"case": lambda step, kind, tensor: 0.5 if (kind, tensor) == ("gradient", "layer") else 0}
    record = check_record(of, "case", wrong)
    return dataclasses.replace(record, job=with_options(record.job, of=of.id))
