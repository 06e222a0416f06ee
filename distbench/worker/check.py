"""The check: trains a case for some steps and leaves fingerprints by which it is compared.

The reference does the same several times over: as it is, again, with changes as small as
rounding (their spread is the envelope of an honest case), and in fp64.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distbench import registry
from distbench.case import Batch, Case, Precision
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.trial import TrialFile
from distbench.worker import checks
from distbench.worker.checks import Refused
from distbench.worker.feed import Feed
from distbench.worker.perturb import moved, round_gradients
from distbench.worker.phases import Phases
from distbench.worker.sketch import describe
from distbench.workloads import _weights

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
    """Seed of another order of the rows inside of each global batch; None: as they come."""
    seed: int = 0
    """Seed of what the model itself draws."""
    rounds: bool = False
    """Round the gradients to the dtype of compute after each micro-batch, as frameworks do that add
    them up in it."""


@dataclass
class Kept:
    """What the trainings of this trial leave."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[dict[str, Any]] = field(default_factory=list)
    replicas: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    effective: dict[str, Any] = field(default_factory=dict)

    def losses(self, training: str) -> list[float]:
        """Return the loss of each step of *training*."""
        return [row["loss"] for row in self.curve if row["training"] == training]

    def gradients(self, training: str) -> dict[str, dict[str, Any]]:
        """Return what is kept of the gradients of *training*, by tensor."""
        rows = [row for row in self.tensors if row["training"] == training and row["of"] == "gradient"]
        return {row["tensor"]: row for row in rows}


def run(trial: TrialFile, setting: Setting, phases: Phases) -> dict[str, Any]:
    """Return what this rank delivers; all but rank 0 deliver no rows.

    Raises:
        Refused: the model draws random numbers while it trains, or its state can't be gathered.
        Mismatch: the engine is not the one that was asked for.
    """
    # kernels that have no deterministic form still run; the reference is trained twice to see
    torch.use_deterministic_algorithms(True, warn_only=True)
    refuse_dropout(setting)
    asked, kept = trial.job.options, Kept()
    plain = Training("case", asked["steps"], setting.case, setting.weights, seed=setting.case.seed)
    check = _Check(setting, phases, kept)
    try:
        if asked["role"] == "reference":
            check.reference(plain, asked["perturbed"], asked["parts"])
        else:
            check.train(plain)
    except NotImplementedError as error:
        # an engine says so of what it can't gather
        raise Refused(str(error)) from error
    is_first = setting.rank == 0
    return {
        "samples": {},
        "passes": {},
        "absent": {},
        "tables": {
            "check_curve": kept.curve,
            "check_tensors": kept.tensors,
            "check_replicas": kept.replicas,
            "check_notes": kept.notes,
        }
        if is_first
        else {},
        "warmup_losses": [],
        "not_finite": next((_broken(row) for row in kept.curve if not math.isfinite(row["loss"])), None),
        "effective": kept.effective,
        "window": (0.0, 0.0),
    }


class _Check:
    def __init__(self, setting: Setting, phases: Phases, kept: Kept) -> None:
        self._setting, self._phases, self._kept = setting, phases, kept
        self._strategy: Strategy = registry.make("strategies", setting.case.strategy)

    def reference(self, plain: Training, perturbed: int, parts: list[int]) -> None:
        """Train the reference: in fp64, as it is, again, and *perturbed* times with tiny changes.

        *parts* are the numbers of parts in which the cases compute a global batch.
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
        """Train, and keep what is compared."""
        case, setting = training.case, self._setting
        torch.manual_seed(training.seed)
        with self._phases.phase("build"):
            engine = self._strategy.build(dataclasses.replace(setting, case=case, weights=training.weights))
        checks.check_engine(self._strategy, engine, case)
        feed = Feed(case, setting.workload, setting.rank, setting.world_size, setting.device, training.order)
        with self._phases.phase("check"):
            self._keep_tensors(training, -1, "parameter", engine.full_state())
            for step in range(training.steps):
                self._phases.progress.at("check", step)
                self._step(training, step, engine, feed)
        if training.name in ("case", "reference"):
            self._kept.effective = engine.effective()
        engine.close()
        del engine
        gc.collect()

    def _step(self, training: Training, step: int, engine: Engine, feed: Feed) -> None:
        losses = []
        for batch in feed.micro_batches(step):
            losses.append(engine.forward_backward(batch))
            if training.rounds:
                round_gradients(engine, training.case.precision.compute)
        loss = mean_over_ranks(float(torch.stack([loss.double() for loss in losses]).mean()))
        norm = engine.grad_norm()
        row = {"training": training.name, "step": step, "loss": loss, "grad_norm": norm}
        self._kept.curve.append(row)
        if step == 0:
            self._keep_tensors(training, step, "gradient", engine.full_gradients())
        engine.step()
        self._keep_tensors(training, step, "parameter", engine.full_state())

    def _keep_tensors(self, training: Training, step: int, of: str, tensors: dict[str, torch.Tensor]) -> None:
        told = {name: describe(name, tensor) for name, tensor in tensors.items()}
        if self._setting.rank == 0:
            place = {"training": training.name, "step": step, "of": of}
            self._kept.tensors += [{**place, "tensor": name, **row} for name, row in told.items()]
        if of == "parameter":
            self._keep_drift(training, step, {name: row["digest"] for name, row in told.items()})

    def _keep_drift(self, training: Training, step: int, digests: dict[str, str]) -> None:
        """Keep the first step at which a rank's own whole parameters are not those of rank 0."""
        seen: list[dict[str, str]] = [{}] * self._setting.world_size
        dist.all_gather_object(seen, digests)
        if any(row["training"] == training.name for row in self._kept.replicas):
            return
        for rank, theirs in enumerate(seen):
            # a rank that got nothing has no copy of its own
            apart = [name for name, digest in theirs.items() if digest != seen[0].get(name)]
            if apart:
                row = {"training": training.name, "step": step, "of_rank": rank, "tensor": apart[0]}
                self._kept.replicas.append(row)
                return

    def _refuse_random(self, reseeded: Training) -> None:
        self.train(reseeded)
        if _apart(self._kept, "fp64", reseeded.name) > _SAME_IN_FP64:
            raise Refused(
                "the model draws random numbers while it trains (another seed makes another first step): "
                "ranks draw others than one process does, so nothing can be compared; switch that off"
            )

    def _parts(self, exact: Training, parts: list[int]) -> list[int]:
        """Return the numbers of parts that change a step by rounding only."""
        most = max(parts)
        if most == 1:
            return [1]
        self.train(dataclasses.replace(exact, name="fp64 parts", steps=1, case=_in_parts(exact.case, most)))
        apart = _apart(self._kept, "fp64", "fp64 parts")
        if apart <= _SAME_IN_FP64:
            return parts
        self._kept.notes.append(
            {
                "training": "fp64",
                "text": f"in fp64 the first step changes by {apart:.1e} of itself when the batch is computed "
                f"in {most} equal parts: the loss of a batch is not the mean of the losses of its parts "
                f"({_why_not_a_mean(self._setting)}), so every data-parallel training is another one",
            }
        )
        return [1]


def _broken(row: dict[str, Any]) -> dict[str, Any]:
    return {"step": row["step"], "value": str(row["loss"])}


def _in_fp64(case: Case) -> Case:
    exact = Precision(compute="fp64", reduce="fp64", master="fp64", optimizer_state="fp64")
    return dataclasses.replace(case, precision=exact)


def _in_parts(case: Case, parts: int) -> Case:
    """Return *case* with the share of each rank computed in *parts* micro-batches, if it can be."""
    share = case.batch.global_batch_size // case.world_size
    if share % parts:
        return case
    return dataclasses.replace(case, batch=Batch(case.batch.global_batch_size, share // parts, parts))


def _apart(kept: Kept, one: str, other: str) -> float:
    """Return the largest relative difference of the first loss and of the norms of first gradients."""
    loss, theirs = kept.losses(one)[0], kept.losses(other)[0]
    found = [abs(loss - theirs) / max(abs(loss), 1e-300)]
    gradients, others = kept.gradients(one), kept.gradients(other)
    largest = max((row["norm"] for row in gradients.values()), default=0.0) or 1.0
    found += [abs(row["norm"] - others[name]["norm"]) / largest for name, row in gradients.items()]
    return max(found)


def mean_over_ranks(loss: float) -> float:
    """Return the mean of the ranks' losses: they hold equal shares of the global batch."""
    losses = [0.0] * dist.get_world_size()
    dist.all_gather_object(losses, loss)
    return sum(losses) / len(losses)


def _modules(setting: Setting) -> dict[str, nn.Module]:
    return dict(_weights.skeleton(setting.workload).named_modules())


def refuse_dropout(setting: Setting) -> None:
    """Raise Refused if the model drops numbers at random."""
    for name, module in _modules(setting).items():
        probability = getattr(module, "p", None)
        if "Dropout" in type(module).__name__ and isinstance(probability, float) and probability > 0:
            raise Refused(
                f"dropout ({name}, p = {probability:g}) draws other numbers on every rank than in one "
                "process, so nothing can be compared; set it to 0 for that"
            )


def _why_not_a_mean(setting: Setting) -> str:
    for name, module in _modules(setting).items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"batch norm in {name} takes its statistics from the rows of one rank"
    return "parts of unequal weight, as when tokens are masked, or a loss that joins rows"
