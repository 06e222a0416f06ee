"""The equivalence check: trains a case for some steps and keeps fingerprints by which it is compared.

The reference is trained several times: as it is, once more, with perturbations as small as rounding (whose
spread is the envelope of an equivalent case), and in fp64.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
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
    Kept,
    Rows,
    Step,
    Trainer,
    modules_of,
    not_as_on_rank_0,
    refuse_dropout,
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


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Refused: the model draws random numbers while it trains, or its state can't be gathered.
        Mismatch: the engine is not the requested one.
    """
    refuse_dropout(setting)
    options = trial.job.options_as(CheckOptions)
    plain = Training("case", options.steps, setting.case, setting.weights, seed=setting.case.seed)
    check = _Check(setting, phases, plain)
    try:
        if options.role == REFERENCE:
            check.reference(options.perturbed or 0, options.parts or [1])
        else:
            check.train()
    except NotImplementedError as error:
        # raised by an engine for what it can't gather
        raise Refused(str(error)) from error
    return check.delivered("check", replicas=check.replicas, notes=check.notes)


class _Check(Kept):
    def __init__(self, setting: Setting, phases: Phases, plain: Training) -> None:
        super().__init__(setting.rank)
        self._setting, self._phases, self._plain = setting, phases, plain
        self._rounds = ""
        """Dtype to which gradients are rounded now."""
        self.replicas: Rows = []
        self.notes: Rows = []

    def reference(self, perturbed: int, parts: list[int]) -> None:
        """Train the reference: in fp64, as it is, once more, and *perturbed* times with tiny perturbations.

        *parts* are the numbers of parts into which the cases divide a global batch.
        """
        case, seed = self._plain.case, self._plain.seed
        self.train(name="fp64", case=_in_fp64(case))
        self.train(name="fp64 reseeded", case=_in_fp64(case), steps=1, seed=seed + 1)
        if self._from_fp64("fp64 reseeded") > _SAME_IN_FP64:
            raise Refused(
                "the model draws random numbers while it trains (the first step depends on the seed): every "
                "rank draws different ones, so nothing can be compared; turn that off"
            )
        parts = self._parts(parts)
        self.train(name="reference")
        self.train(name="repeat")
        for number in range(perturbed):
            weights = moved(self._setting, number)
            self.train(
                name=f"perturbed {number + 1}",
                case=_in_parts(case, parts[number % len(parts)]),
                weights=weights,
                order=number,
                rounds=number % 2 == 1,
            )
            if self._setting.rank == 0:
                weights.unlink()

    def train(self, **changes: Any) -> None:
        """Train as the case does but for *changes*, and keep what will be compared."""
        training = dataclasses.replace(self._plain, **changes)
        setting = dataclasses.replace(self._setting, case=training.case, weights=training.weights)
        feed = Feed(setting, training.order)
        with self._phases.phase("build"):
            trainer = Trainer(setting, feed, seed=training.seed)
        self.training = training.name
        self._rounds = training.case.precision.compute if training.rounds else ""
        with self._phases.phase("check"):
            self._keep_parameters(-1, trainer.engine)
            trainer.train(range(training.steps), self)
        if training.name in ("case", "reference"):
            self.delivery.effective = trainer.engine.effective()
        trainer.engine.close()

    def begins(self, number: int) -> None:
        self._phases.progress.at("check", number)

    def micro_batch(self, engine: Engine) -> None:
        if self._rounds:
            round_gradients(engine, self._rounds)

    def gradients(self, step: Step, engine: Engine) -> bool:
        super().gradients(step, engine)
        if step.number == 0:
            self.keep(0, "gradient", engine.full_gradients())
        return True

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        self._keep_parameters(step.number, engine)

    def _keep_parameters(self, step: int, engine: Engine) -> None:
        """Keep the parameters after *step*, and the first rank whose copy differs from rank 0's."""
        digests = self.keep(step, "parameter", engine.full_state(), everywhere=True)
        rank, names = next(not_as_on_rank_0(digests), (0, []))
        if names and not any(row["training"] == self.training for row in self.replicas):
            row = {"training": self.training, "step": step, "of_rank": rank, "tensor": names[0]}
            self.replicas.append(row)

    def _parts(self, parts: list[int]) -> list[int]:
        """Those *parts* that change a step only by rounding."""
        most = max(parts)
        if most == 1:
            return [1]
        self.train(name="fp64 parts", case=_in_parts(_in_fp64(self._plain.case), most), steps=1)
        distance = self._from_fp64("fp64 parts")
        if distance <= _SAME_IN_FP64:
            return parts
        self.notes.append(
            {
                "training": "fp64",
                "text": f"in fp64 the first step changes by {distance:.1e} of itself if the batch is split "
                f"into {most} equal parts: the loss of a batch is not the mean of the losses of its parts "
                f"({_why_not_a_mean(self._setting)}), so no data-parallel training is equivalent",
            }
        )
        return [1]

    def _from_fp64(self, training: str) -> float:
        """Largest relative difference from the fp64 training, in first loss and norms of first gradients.

        A collective call: rank 0 alone has the norms, and all ranks must decide alike.
        """
        # of the first step, which is read last
        losses: dict[str, float] = {row["training"]: row["loss"] for row in reversed(self.curve)}
        gradients = [row for row in self.tensors if row["of"] == "gradient"]
        norms: dict[tuple[str, str], float]
        norms = {(row["training"], row["tensor"]): row["norm"] for row in gradients}
        exact = {name: norm for (of, name), norm in norms.items() if of == "fp64"}
        largest = max(exact.values(), default=0.0) or 1.0
        apart = [abs(losses["fp64"] - losses[training]) / max(abs(losses["fp64"]), 1e-300)]
        apart += [abs(norm - norms[training, name]) / largest for name, norm in exact.items()]
        shared = [max(apart)]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]


def _in_fp64(case: Case) -> Case:
    exact = Precision(compute="fp64", reduce="fp64", master="fp64", optimizer_state="fp64")
    return dataclasses.replace(case, precision=exact)


def _in_parts(case: Case, parts: int) -> Case:
    """*case* with the share of each rank computed in *parts* micro-batches, if it is divisible by that."""
    share = case.batch.global_batch_size // case.world_size
    if share % parts:
        return case
    return dataclasses.replace(case, batch=Batch(case.batch.global_batch_size, share // parts, parts))


def _why_not_a_mean(setting: Setting) -> str:
    for name, module in modules_of(setting).items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"batch norm in {name} takes its statistics from the rows of one rank"
    return "parts of unequal weight, as when tokens are masked, or a loss that joins rows"
