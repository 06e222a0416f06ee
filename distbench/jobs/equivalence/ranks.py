"""The equivalence check: trains a case for some steps and keeps fingerprints by which it is compared.

The reference is trained several times: as it is, once more, with perturbations as small as rounding (whose
spread is the envelope of an equivalent case), and in fp64.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from distbench import optimizers
from distbench.core.case import Batch, Case, Precision
from distbench.core.job import REFERENCE
from distbench.core.text import clipped
from distbench.ipc.trial_files import NO_DROPOUT, Phases, TrialFile
from distbench.jobs.equivalence import ADVICE, CheckOptions
from distbench.strategies.base import Refused, Setting
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.determinism import lacks_determinism
from distbench.worker.dropout import refuse_dropout, without_dropout
from distbench.worker.feed import Feed
from distbench.worker.fingerprints import Fingerprints
from distbench.worker.perturb import clip_gradients, moved, round_gradients
from distbench.worker.rendezvous import Agreement
from distbench.worker.room import lacking_for_fp64
from distbench.worker.trainer import Delivery, Step, Trainer
from distbench.workloads import batch_norm, weights

# far above the rounding of the dtype, far below any other difference
_SAME: dict[str, float] = {"fp64": 1e-9, "fp32": 1e-5}
# how many times further than rounding takes the fp64 training something must be to be a cause of its own
_BEYOND_ROUNDING = 10.0
_PROBES = 2
_LONGEST = 300
"""Characters of what a model says that fails in fp64."""
_SUM_AND_COUNT = (
    "Where parts of a batch have unequal numbers of labels, as when tokens are masked, let the loss return a "
    'sum and a count: total = cross_entropy(logits, labels, reduction="sum"); count = (labels != '
    "-100).sum(); return total, count. A loss that joins rows otherwise allows no equivalent data-parallel "
    "training"
)


_PER_RANK = (
    "Where statistics of the rows of one rank are meant, as people train models with BatchNorm, declare it: "
    "batch_norm: per_rank, an option of the workload, compares each case with one process that divides the "
    "batch as it does; batch_norm: sync takes those of all ranks (GPUs)"
)


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
    them in it; to that of an optimizer which computes in less, as another order of sums does there."""
    clips_exactly: bool = False
    """Clip by a norm in fp64, where the engine's own may be off by more than any other rounding."""


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Refused: the model draws random numbers while it trains, or its state can't be gathered.
        Mismatch: the engine is not the requested one.
    """
    options, dropped = trial.job.options_as(CheckOptions), ""
    if options.dropout == "refuse":
        refuse_dropout(setting)
    else:
        setting, dropped = without_dropout(setting)
    plain = Training("case", options.steps, setting.case, setting.weights, seed=setting.case.seed)
    check = _Check(setting, phases, plain, trial.limits.step / 2)
    try:
        if options.role == REFERENCE:
            lacking = lacking_for_fp64(setting) if options.fp64 else "the suite asks for none (check.fp64)"
            check.reference(options.perturbed or 0, options.parts or [1], lacking)
        else:
            check.train()
    except NotImplementedError as error:
        # raised by an engine for what it can't gather
        raise Refused(str(error)) from error
    delivery = check.delivered("check", replicas=check.replicas, notes=check.notes)
    delivery.facts |= {NO_DROPOUT: dropped} if dropped else {}
    return delivery


class _Check(Fingerprints):
    def __init__(self, setting: Setting, phases: Phases, plain: Training, patience_s: float) -> None:
        super().__init__(setting)
        self._phases, self._plain, self._patience_s = phases, plain, patience_s
        self._rounds = ""
        """Dtype to which gradients are rounded now."""
        self._clips_to = math.inf
        """Norm to which gradients are clipped exactly now."""
        self._exact: Literal["fp64", "fp32"] = "fp64"
        """Dtype of the most exact training."""

    def reference(self, perturbed: int, parts: list[int], no_fp64: str) -> None:
        """Train the reference: in fp64, as it is, once more, and *perturbed* times with tiny perturbations.

        *parts* are the numbers of parts into which the cases divide a global batch; *no_fp64* says why fp32
        has to do for what is asked of fp64, if it has: then only its first step is trained.
        """
        seed = self._plain.seed
        if no_fp64 := no_fp64 or self._attempt_fp64():
            self._exact = "fp32"
            self._note("exact", f"nothing was trained in fp64, so bounds are wider: {no_fp64}")
            self.train(name="fp32", case=self._exactly(), steps=1)
        self.train(name="reseeded", case=self._exactly(), steps=1, seed=seed + 1)
        if self._from_exact("reseeded")[0] > _SAME[self._exact]:
            raise Refused(
                "the model draws random numbers while it trains (the first step depends on the seed), not by "
                "dropout that its modules or their config show: which row gets which of them depends on how "
                "rows are divided among ranks, so nothing can be compared; turn that off"
            )
        parts = self._parts(parts)
        always = bool(optimizers.kind_of(self._plain.case.optimizer).computes_in)
        self.train(name="reference")
        self.train(name="repeat")
        for number in range(perturbed):
            self._train_moved(
                number,
                name=f"perturbed {number + 1}",
                case=_in_parts(self._plain.case, parts[number % len(parts)]),
                rounds=always or number % 2 == 1,
                clips_exactly=number % 4 >= 2,
            )

    def _attempt_fp64(self) -> str:
        """Train in fp64; return why that can't be done, which must not cost the check in other dtypes."""
        try:
            self.train(name="fp64", case=self._exactly())
        except Exception as error:
            # whatever a model raises that casts inside, or calls what has no fp64; what has no room is tried
            # otherwise
            if lacks_determinism(error) or isinstance(error, torch.OutOfMemoryError):
                raise
            told = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
            if not self._all_fail(told):
                raise
            traceback.print_exc()
            self.curve, self.tensors = [], []
            return f"the model fails in it ({clipped(told, _LONGEST, 'the whole is in the log of the rank')})"
        # a rank that has failed waits to hear whether this one has
        self._all_fail("")
        return ""

    def _all_fail(self, told: str) -> bool:
        """Whether all ranks of the reference fail alike, as this one does with *told*, and so in one place.

        If others don't, they are in a collective operation, and no training can follow.
        """
        setting = self._setting
        if setting.store is None:
            return True
        agreement = Agreement(setting.store, setting.rank, setting.world_size, self._patience_s)
        with suppress(dist.DistStoreError):
            return set(agreement.all_said("fp64", told)) == {told}
        return False

    def _train_moved(self, number: int, **changes: Any) -> None:
        """Train from weights that are moved by rounding, with the rows of each batch in another order."""
        file = moved(self._setting, number)
        try:
            self.train(weights=file, order=number, **changes)
        finally:
            file.unlink(missing_ok=True)

    def train(self, **changes: Any) -> None:
        """Train as the case does but for *changes*, and keep what will be compared."""
        training = dataclasses.replace(self._plain, **changes)
        setting = dataclasses.replace(self._setting, case=training.case, weights=training.weights)
        feed = Feed(setting, training.order)
        with self._phases.phase("build"):
            trainer = Trainer(setting, feed, seed=training.seed)
        coarse = optimizers.kind_of(training.case.optimizer).computes_in or training.case.precision.compute
        self._rounds = coarse if training.rounds else ""
        limit = training.case.optimizer.clip_grad_norm if training.clips_exactly else None
        self._clips_to = math.inf if limit is None else limit
        with self._phases.phase("check"):
            self.watch(training.name, trainer.engine)
            trainer.train(range(training.steps), self)
        if training.name in ("case", "reference"):
            self.delivery.effective = checks.settings_of(trainer.engine)
        trainer.engine.close()

    def begins(self, number: int) -> None:
        self._phases.progress.at("check", number)

    def micro_batch(self, engine: Engine) -> None:
        if self._rounds:
            round_gradients(engine, self._rounds)

    def gradients(self, step: Step, engine: Engine) -> bool:
        goes_on = super().gradients(step, engine)
        if math.isfinite(self._clips_to):
            clip_gradients(engine, self._clips_to, self.curve[-1]["grad_norm"])
        return goes_on

    def _parts(self, parts: list[int]) -> list[int]:
        """Those *parts* that change a step only by rounding."""
        if self._plain.case.parts_matter:
            # other ones would be another training
            return [self._plain.case.batch.parts]
        most = max(parts)
        if most == 1:
            return [1]
        self.train(name="exact parts", case=_in_parts(self._exactly(), most), steps=1)
        distance, buffer = self._from_exact("exact parts")
        if max(distance, buffer) <= _SAME[self._exact]:
            return parts
        rounding = _BEYOND_ROUNDING * self._rounding()
        split = f"if the batch is split into {most} equal parts"
        norm = _batch_norm(self._setting)
        if buffer > rounding and not norm:
            self._note(
                "fp64 parts",
                f"in {self._exact} a buffer changes by {buffer:.1e} of itself {split}: it keeps what it has "
                "seen, so no training is equivalent that accumulates gradients, or whose ranks don't average "
                "it",
            )
        elif distance > rounding:
            why = f"{norm}; " if norm else ""
            self._note(
                "fp64",
                f"the loss of a batch is not the mean of the losses of its parts ({why}in {self._exact} the "
                f"first step changes by {distance:.1e} of itself {split})",
            )
            self._note(ADVICE, _PER_RANK if norm else _SUM_AND_COUNT)
        return parts if max(distance, buffer) <= rounding else [1]

    def _note(self, training: str, text: str) -> None:
        self.notes.append({"training": training, "text": text})

    def _exactly(self) -> Case:
        """The case in the most exact dtype that there is room for."""
        precision = Precision(self._exact, self._exact, self._exact, self._exact)
        return dataclasses.replace(self._plain.case, precision=precision)

    def _rounding(self) -> float:
        """How far rounding takes the first step of the most exact training.

        More than that of its dtype where the model or the loss casts to a shorter one, as ``.float()``
        does: then weights moved by an ulp of fp32, or rows in another order, change the step as much as a
        split does.
        """
        distances: list[float] = []
        for number in range(_PROBES):
            self._train_moved(number, name=f"exact moved {number + 1}", case=self._exactly(), steps=1)
            distances += self._from_exact(self.training)
        return max(distances)

    def _from_exact(self, training: str) -> tuple[float, float]:
        """Largest relative difference of the first step from that of the most exact training.

        In the loss and in norms of gradients, relative to the largest of these; and in norms of buffers, each
        relative to itself. A collective call: rank 0 alone has the norms, and all ranks must decide alike.
        """
        # of the first step, which is read last
        losses: dict[str, float] = {row["training"]: row["loss"] for row in reversed(self.curve)}
        exact, other = self._norms(self._exact, "gradient"), self._norms(training, "gradient")
        largest = max(exact.values(), default=0.0) or 1.0
        apart = [_relative(losses[training], losses[self._exact])]
        apart += [abs(norm - other[name]) / largest for name, norm in exact.items()]
        buffers = self._norms(training, "buffer")
        kept = [_relative(buffers[name], norm) for name, norm in self._norms(self._exact, "buffer").items()]
        shared = [(max(apart), max(kept, default=0.0))]
        dist.broadcast_object_list(shared, src=0)
        both: tuple[float, float] = shared[0]
        return both

    def _norms(self, training: str, of: str) -> dict[str, float]:
        """Norms in the first step of *training*, by tensor."""
        rows = (row for row in self.tensors if row["step"] == 0 and row["of"] == of)
        return {row["tensor"]: row["norm"] for row in rows if row["training"] == training}


def _relative(value: float, exact: float) -> float:
    return abs(value - exact) / max(abs(exact), 1e-300)


def _in_parts(case: Case, parts: int) -> Case:
    """*case* with the share of each rank computed in *parts* micro-batches, if it is divisible by that."""
    share = case.batch.global_batch_size // case.world_size
    if share % parts:
        return case
    return dataclasses.replace(case, batch=Batch(case.batch.global_batch_size, share // parts, parts))


def _batch_norm(setting: Setting) -> str:
    """What the model's first batch norm does, if it has one."""
    for name, layer in batch_norm.layers(weights.skeleton(setting.workload)).items():
        if batch_norm.is_synchronised(layer):
            return f"batch norm in {name} takes its statistics from one micro-batch of all ranks"
        return f"batch norm in {name} takes its statistics from the rows of one rank"
    return ""
