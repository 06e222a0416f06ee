"""The equivalence check: trains a case for some steps and keeps fingerprints by which it is compared.

The reference is trained several times: as it is, once more, with perturbations as small as rounding (whose
spread is the envelope of an equivalent case), and in fp64.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from distbench.case import Batch, Case, Precision
from distbench.job import REFERENCE
from distbench.jobs.equivalence import CheckOptions
from distbench.strategies.base import Engine, Setting
from distbench.trial import Phases, TrialFile
from distbench.worker.checks import Refused
from distbench.worker.feed import Feed
from distbench.worker.perturb import moved, round_gradients
from distbench.worker.trainer import (
    Delivery,
    Fingerprints,
    Rows,
    Step,
    Trainer,
    Watcher,
    modules_of,
    not_as_on_rank_0,
    refuse_dropout,
    row_of,
)

# far above the rounding of fp64, far below any other difference
_SAME_IN_FP64 = 1e-9


@dataclass(frozen=True)
class Training:
    """One training of the check."""

    name: str
    steps: int
    case: Case
    weights: Path
    order: int | None = None
    """Seed of a permutation of the rows in each global batch; None: as they come."""
    seed: int = 0
    """Seed of what the model itself draws."""
    rounds: bool = False
    """Round the gradients to the compute dtype after each micro-batch, as do frameworks that accumulate
    them in it."""


class Kept:
    """What is kept of the trainings of this trial."""

    def __init__(self, rank: int) -> None:
        self.curve: Rows = []
        self.tensors = Fingerprints(rank)
        self.replicas: Rows = []
        self.notes: Rows = []
        self.effective: dict[str, Any] = {}

    def losses(self, training: str) -> list[float]:
        """Loss of each step of *training*."""
        return [row["loss"] for row in self.curve if row["training"] == training]

    def gradients(self, training: str) -> dict[str, dict[str, Any]]:
        """Fingerprints of the gradients of *training*, by tensor."""
        rows = [row for row in self.tensors.rows if (row["training"], row["of"]) == (training, "gradient")]
        return {row["tensor"]: row for row in rows}


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Refused: the model draws random numbers while it trains, or its state can't be gathered.
        Mismatch: the engine is not the requested one.
    """
    refuse_dropout(setting)
    options, kept = trial.job.options_as(CheckOptions), Kept(setting.rank)
    plain = Training("case", options.steps, setting.case, setting.weights, seed=setting.case.seed)
    check = _Check(setting, phases, kept)
    try:
        if options.role == REFERENCE:
            check.reference(plain, options.perturbed or 0, options.parts or [1])
        else:
            check.train(plain)
    except NotImplementedError as error:
        # raised by an engine for what it can't gather
        raise Refused(str(error)) from error
    tables = {
        "check_curve": kept.curve,
        "check_tensors": kept.tensors.rows,
        "check_replicas": kept.replicas,
        "check_notes": kept.notes,
    }
    return Delivery(
        tables=tables if setting.rank == 0 else {},
        not_finite=next((_broken(row) for row in kept.curve if not math.isfinite(row["loss"])), None),
        effective=kept.effective,
    )


class _Check:
    def __init__(self, setting: Setting, phases: Phases, kept: Kept) -> None:
        self._setting, self._phases, self._kept = setting, phases, kept

    def reference(self, plain: Training, perturbed: int, parts: list[int]) -> None:
        """Train the reference: in fp64, as it is, once more, and *perturbed* times with tiny perturbations.

        *parts* are the numbers of parts into which the cases divide a global batch.
        """
        exact = dataclasses.replace(plain, name="fp64", case=_in_fp64(plain.case))
        self.train(exact)
        self._refuse_random(dataclasses.replace(exact, name="fp64 reseeded", steps=1, seed=plain.seed + 1))
        parts = self._parts(exact, parts)
        self.train(dataclasses.replace(plain, name="reference"))
        self.train(dataclasses.replace(plain, name="repeat"))
        for number in range(perturbed):
            weights = moved(self._setting, number)
            case = _in_parts(plain.case, parts[number % len(parts)])
            name = f"perturbed {number + 1}"
            tiny = dataclasses.replace(plain, weights=weights, order=number, rounds=number % 2 == 1)
            self.train(dataclasses.replace(tiny, name=name, case=case))
            if self._setting.rank == 0:
                weights.unlink()

    def train(self, training: Training) -> None:
        """Train, and keep what will be compared."""
        setting = dataclasses.replace(self._setting, case=training.case, weights=training.weights)
        feed = Feed(
            setting.case, setting.workload, setting.rank, setting.world_size, setting.device, training.order
        )
        with self._phases.phase("build"):
            trainer = Trainer(setting, feed, seed=training.seed)
        watcher = _Watcher(training, self._kept, self._phases)
        with self._phases.phase("check"):
            watcher.keep_parameters(-1, trainer.engine)
            trainer.train(range(training.steps), watcher)
        if training.name in ("case", "reference"):
            self._kept.effective = trainer.engine.effective()
        trainer.engine.close()

    def _refuse_random(self, reseeded: Training) -> None:
        self.train(reseeded)
        if _distance(self._kept, "fp64", reseeded.name) > _SAME_IN_FP64:
            raise Refused(
                "the model draws random numbers while it trains (the first step depends on the seed): every "
                "rank draws different ones, so nothing can be compared; turn that off"
            )

    def _parts(self, exact: Training, parts: list[int]) -> list[int]:
        """Those *parts* that change a step only by rounding."""
        most = max(parts)
        if most == 1:
            return [1]
        self.train(dataclasses.replace(exact, name="fp64 parts", steps=1, case=_in_parts(exact.case, most)))
        distance = _distance(self._kept, "fp64", "fp64 parts")
        if distance <= _SAME_IN_FP64:
            return parts
        self._kept.notes.append(
            {
                "training": "fp64",
                "text": f"in fp64 the first step changes by {distance:.1e} of itself if the batch is split "
                f"into {most} equal parts: the loss of a batch is not the mean of the losses of its parts "
                f"({_why_not_a_mean(self._setting)}), so no data-parallel training is equivalent",
            }
        )
        return [1]


class _Watcher(Watcher):
    """Keeps the losses, the first gradients and the parameters of one training."""

    def __init__(self, training: Training, kept: Kept, phases: Phases) -> None:
        self._training, self._kept, self._phases = training, kept, phases

    def begins(self, number: int) -> None:
        self._phases.progress.at("check", number)

    def micro_batch(self, engine: Engine) -> None:
        if self._training.rounds:
            round_gradients(engine, self._training.case.precision.compute)

    def gradients(self, step: Step, engine: Engine) -> bool:
        self._kept.curve.append(row_of(self._training.name, step, engine))
        if step.number == 0:
            self._kept.tensors.keep(self._training.name, 0, "gradient", engine.full_gradients())
        return True

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        self.keep_parameters(step.number, engine)

    def keep_parameters(self, step: int, engine: Engine) -> None:
        """Keep the parameters after *step*, and the first rank whose copy differs from rank 0's."""
        training, kept = self._training.name, self._kept
        digests = kept.tensors.keep(training, step, "parameter", engine.full_state(), everywhere=True)
        rank, names = next(not_as_on_rank_0(digests), (0, []))
        if names and not any(row["training"] == training for row in kept.replicas):
            row = {"training": training, "step": step, "of_rank": rank, "tensor": names[0]}
            kept.replicas.append(row)


def _broken(row: dict[str, Any]) -> dict[str, Any]:
    return {"step": row["step"], "value": str(row["loss"])}


def _in_fp64(case: Case) -> Case:
    exact = Precision(compute="fp64", reduce="fp64", master="fp64", optimizer_state="fp64")
    return dataclasses.replace(case, precision=exact)


def _in_parts(case: Case, parts: int) -> Case:
    """*case* with the share of each rank computed in *parts* micro-batches, if it is divisible by that."""
    share = case.batch.global_batch_size // case.world_size
    if share % parts:
        return case
    return dataclasses.replace(case, batch=Batch(case.batch.global_batch_size, share // parts, parts))


def _distance(kept: Kept, training: str, other: str) -> float:
    """Largest relative difference between two trainings, in first loss and norms of first gradients."""
    loss, other_loss = kept.losses(training)[0], kept.losses(other)[0]
    distances = [abs(loss - other_loss) / max(abs(loss), 1e-300)]
    gradients, others = kept.gradients(training), kept.gradients(other)
    largest = max((row["norm"] for row in gradients.values()), default=0.0) or 1.0
    distances += [abs(row["norm"] - others[name]["norm"]) / largest for name, row in gradients.items()]
    return max(distances)


def _why_not_a_mean(setting: Setting) -> str:
    for name, module in modules_of(setting).items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"batch norm in {name} takes its statistics from the rows of one rank"
    return "parts of unequal weight, as when tokens are masked, or a loss that joins rows"
