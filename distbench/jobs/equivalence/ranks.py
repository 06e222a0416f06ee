"""Train a case or its reference for an equivalence check and record fingerprints, on one rank.

The reference is trained several times: unchanged, once more, with rounding-sized perturbations (their
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
from distbench.core.case import Batch, Case, PrecisionConfig
from distbench.core.job import REFERENCE
from distbench.core.text import truncate_middle
from distbench.ipc.trial_files import NO_DROPOUT_KEY, PhaseTimer, TrialInstructions
from distbench.jobs.equivalence import ADVICE, CONFIRMATION, CheckOptions
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.batches import MicroBatchReader
from distbench.worker.determinism import match_nondeterministic_operation
from distbench.worker.dropout import refuse_dropout, without_dropout
from distbench.worker.fingerprints import FingerprintRecorder
from distbench.worker.fp64_memory import fp64_memory_problem
from distbench.worker.perturb import clip_gradients, round_gradients, write_perturbed_weights
from distbench.worker.rendezvous import StoreExchange
from distbench.worker.trainer import RankResult, Trainer, TrainingStep
from distbench.workloads import batch_norm, weights

# far above the rounding of the dtype, far below any other difference
_TOLERANCES: dict[str, float] = {"fp64": 1e-9, "fp32": 1e-5}
# multiple of the rounding of the fp64 training above which a difference has a cause of its own
_BEYOND_ROUNDING = 10.0
_PROBES = 2
_CONFIRMATION_SEED = 1_000_000
_MAX_ERROR_TEXT = 300
"""Characters kept of the error of a model that fails in fp64."""
_LOSS_ADVICE = (
    "If parts of a batch have unequal numbers of labels (for example with masked tokens), let the loss "
    'return a sum and a count: total = cross_entropy(logits, labels, reduction="sum"); count = '
    "(labels != -100).sum(); return total, count. No data-parallel training is equivalent if the loss "
    "combines rows in another way"
)


_BATCH_NORM_ADVICE = (
    "If statistics per rank are intended, as is usual with BatchNorm, declare it with an option of the "
    "workload: batch_norm: per_rank compares each case with one process that divides the batch in the "
    "same way; batch_norm: sync uses the statistics of all ranks (GPUs only)"
)


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of one training of the check."""

    name: str
    steps: int
    case: Case
    weights: Path
    order: int | None = None
    """Seed of a permutation of the rows in each global batch; None: unchanged order."""
    seed: int = 0
    """Seed of the random numbers that the model itself draws."""
    rounds: bool = False
    """Round the gradients to the compute dtype after each micro-batch, as frameworks do that accumulate in
    it. If the optimizer computes in a shorter dtype, round to that, like a different order of sums there."""
    clips_exactly: bool = False
    """Clip by a norm in fp64: the engine's own may have a larger error than any other rounding."""


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows.

    Raises:
        UnsupportedCase: the model draws random numbers while it trains, or its state can't be gathered.
        Mismatch: the engine is not the requested one.
    """
    options, dropped = trial.job.options_as(CheckOptions), ""
    if options.dropout == "refuse":
        refuse_dropout(context)
    else:
        context, dropped = without_dropout(context)
    plain = TrainingPlan("case", options.steps, context.case, context.weights_file, seed=context.case.seed)
    check = _EquivalenceRecorder(context, phases, plain, trial.limits.step / 2)
    try:
        if options.role == REFERENCE:
            lacking = fp64_memory_problem(context) if options.fp64 else "the suite disables it (check.fp64)"
            check.train_reference(options.perturbed or 0, options.parts or [1], lacking)
        elif options.role == CONFIRMATION:
            check.train_case_again()
        else:
            check.train()
    except NotImplementedError as error:
        # raised by an engine whose state can't be gathered
        raise UnsupportedCase(str(error)) from error
    delivery = check.build_result("check", replicas=check.diverged_replicas, notes=check.notes)
    delivery.facts |= {NO_DROPOUT_KEY: dropped} if dropped else {}
    return delivery


class _EquivalenceRecorder(FingerprintRecorder):
    def __init__(
        self, context: RankContext, phases: PhaseTimer, plain: TrainingPlan, patience_s: float
    ) -> None:
        super().__init__(context)
        self._phases, self._plain, self._patience_s = phases, plain, patience_s
        self._rounding_dtype = ""
        """Dtype to which gradients are rounded in the current training."""
        self._clip_norm = math.inf
        """Norm to which gradients are clipped exactly in the current training."""
        self._exact_dtype: Literal["fp64", "fp32"] = "fp64"
        """Dtype of the most exact training."""

    def train_reference(self, perturbed: int, parts: list[int], no_fp64: str) -> None:
        """Train the reference: in fp64, unchanged, once more, and *perturbed* times with tiny perturbations.

        *parts* are the numbers of parts into which the cases split a global batch. *no_fp64* is the reason
        why fp32 must replace fp64, if it must: then only the first step is trained in it.
        """
        seed = self._plain.seed
        if no_fp64 := no_fp64 or self._attempt_fp64():
            self._exact_dtype = "fp32"
            self._note("exact", f"the fp64 training was skipped, so bounds are wider: {no_fp64}")
            self.train(name="fp32", case=self._most_exact_case(), steps=1)
        if self._is_broken:
            return
        self.train(name="reseeded", case=self._most_exact_case(), steps=1, seed=seed + 1)
        if self._difference_from_exact("reseeded")[0] > _TOLERANCES[self._exact_dtype]:
            raise UnsupportedCase(
                "the model draws random numbers during training (the first step depends on the seed), "
                "and not in a dropout that its modules or their config show. The division of rows "
                "among ranks decides which row gets which of them, so trainings can't be compared; "
                "disable the random numbers"
            )
        parts = self._valid_parts(parts)
        always = bool(optimizers.update_dtype(self._plain.case.optimizer))
        self.train(name="reference")
        if self._is_broken:
            return
        self.train(name="repeat")
        for number in range(perturbed):
            self._train_perturbed(
                number,
                name=f"perturbed {number + 1}",
                case=_in_parts(self._plain.case, parts[number % len(parts)]),
                rounds=always or number % 2 == 1,
                clips_exactly=number % 4 >= 2,
            )

    @property
    def _is_broken(self) -> bool:
        """True if a loss was not finite, so that nothing is compared with this one; alike on all ranks."""
        return not all(math.isfinite(row["loss"]) for row in self.curve)

    def train_case_again(self) -> None:
        """Train the case from weights perturbed by rounding, unlike those of any perturbed reference.

        If the batch is computed in one part, its rows are also in a different order.
        """
        is_whole = self._plain.case.batch.total_micro_batches == 1
        self._train_perturbed(_CONFIRMATION_SEED, name="case", order=_CONFIRMATION_SEED if is_whole else None)

    def _attempt_fp64(self) -> str:
        """Train in fp64; return the reason if that fails: the check in other dtypes must go on."""
        try:
            self.train(name="fp64", case=self._most_exact_case())
        except Exception as error:
            # any error of a model that casts inside, or uses an operation without fp64; out of memory is left
            # to a fallback
            if match_nondeterministic_operation(error) or isinstance(error, torch.OutOfMemoryError):
                raise
            message = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
            if not self._all_fail(message):
                raise
            traceback.print_exc()
            self.curve, self.tensors = [], []
            text = truncate_middle(message, _MAX_ERROR_TEXT, "the full text is in the log of the rank")
            return f"the model fails in it ({text})"
        # a rank that has failed waits for the result of this one
        self._all_fail("")
        return ""

    def _all_fail(self, message: str) -> bool:
        """True if all ranks of the reference failed with the same *message*, so at the same place.

        If others did not fail, they are in a collective operation, and no training can follow.
        """
        setting = self._context
        if setting.store is None:
            return True
        agreement = StoreExchange(setting.store, setting.rank, setting.world_size, self._patience_s)
        with suppress(dist.DistStoreError):
            return set(agreement.all_gather("fp64", message)) == {message}
        return False

    def _train_perturbed(self, number: int, **changes: Any) -> None:
        """Train from weights perturbed by rounding, with the rows of each batch in a different order."""
        file = write_perturbed_weights(self._context, number)
        try:
            self.train(**{"weights": file, "order": number, **changes})
        finally:
            file.unlink(missing_ok=True)

    def train(self, **changes: Any) -> None:
        """Train like the case except for *changes*, and record what is compared later."""
        training = dataclasses.replace(self._plain, **changes)
        setting = dataclasses.replace(self._context, case=training.case, weights_file=training.weights)
        feed = MicroBatchReader(setting, training.order)
        with self._phases.phase("build"):
            trainer = Trainer(setting, feed, seed=training.seed)
        coarse = optimizers.update_dtype(training.case.optimizer) or training.case.precision.compute
        self._rounding_dtype = coarse if training.rounds else ""
        limit = training.case.optimizer.clip_grad_norm if training.clips_exactly else None
        self._clip_norm = math.inf if limit is None else limit
        with self._phases.phase("check"):
            self.before_training(training.name, trainer.engine)
            trainer.train(range(training.steps), self)
        if training.name in ("case", "reference"):
            self.result.effective = checks.effective_settings(trainer.engine)
        trainer.engine.close()

    def before_step(self, number: int) -> None:
        self._phases.progress.report("check", number)

    def after_micro_batch(self, engine: Engine) -> None:
        if self._rounding_dtype:
            round_gradients(engine, self._rounding_dtype)

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        goes_on = super().before_update(step, engine)
        if math.isfinite(self._clip_norm):
            clip_gradients(engine, self._clip_norm, self.curve[-1]["grad_norm"])
        return goes_on

    def _valid_parts(self, parts: list[int]) -> list[int]:
        """Return those of *parts* that change a step only by rounding."""
        if self._plain.case.depends_on_batch_division:
            # other numbers of parts would change the training
            return [self._plain.case.batch.total_micro_batches]
        most = max(parts)
        if most == 1:
            return [1]
        self.train(name="exact parts", case=_in_parts(self._most_exact_case(), most), steps=1)
        distance, buffer = self._difference_from_exact("exact parts")
        if max(distance, buffer) <= _TOLERANCES[self._exact_dtype]:
            return parts
        rounding = _BEYOND_ROUNDING * self._rounding_difference()
        split = f"if the batch is split into {most} equal parts"
        norm = _batch_norm_note(self._context)
        if buffer > rounding and not norm:
            self._note(
                "fp64 parts",
                f"in {self._exact_dtype} a buffer changes by {buffer:.1e} (relative) {split}, because "
                "it accumulates statistics of the batch. A training is not equivalent if it "
                "accumulates gradients or does not average the buffer over ranks",
            )
        elif distance > rounding:
            why = f"{norm}; " if norm else ""
            self._note(
                "fp64",
                f"the loss of a batch is not the mean of the losses of its parts ({why}in "
                f"{self._exact_dtype} the first step changes by {distance:.1e} (relative) {split})",
            )
            self._note(ADVICE, _BATCH_NORM_ADVICE if norm else _LOSS_ADVICE)
        return parts if max(distance, buffer) <= rounding else [1]

    def _note(self, training: str, text: str) -> None:
        self.notes.append({"training": training, "text": text})

    def _most_exact_case(self) -> Case:
        """Return the case in the most exact dtype that fits into memory."""
        precision = PrecisionConfig(
            self._exact_dtype, self._exact_dtype, self._exact_dtype, self._exact_dtype
        )
        return dataclasses.replace(self._plain.case, precision=precision)

    def _rounding_difference(self) -> float:
        """Relative change of the first step of the most exact training by rounding.

        Larger than the rounding of its dtype if the model or the loss casts to a shorter one, as ``.float()``
        does: then weights moved by an ulp of fp32, or rows in a different order, change the step as much as a
        split does.
        """
        distances: list[float] = []
        for number in range(_PROBES):
            self._train_perturbed(
                number, name=f"exact moved {number + 1}", case=self._most_exact_case(), steps=1
            )
            distances += self._difference_from_exact(self.training)
        return max(distances)

    def _difference_from_exact(self, training: str) -> tuple[float, float]:
        """Largest relative difference of the first step from that of the most exact training.

        In the loss and in norms of gradients, relative to the largest of these; and in norms of buffers, each
        relative to itself. A collective call: only rank 0 has the norms, and all ranks must decide alike.
        """
        # of the first step, which is read last
        losses: dict[str, float] = {row["training"]: row["loss"] for row in reversed(self.curve)}
        exact, other = self._norms(self._exact_dtype, "gradient"), self._norms(training, "gradient")
        largest = max(exact.values(), default=0.0) or 1.0
        differences = [_relative(losses[training], losses[self._exact_dtype])]
        differences += [abs(norm - other[name]) / largest for name, norm in exact.items()]
        buffers = self._norms(training, "buffer")
        kept = [
            _relative(buffers[name], norm) for name, norm in self._norms(self._exact_dtype, "buffer").items()
        ]
        shared = [(max(differences), max(kept, default=0.0))]
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
    """Return *case* with the share of each rank split into *parts* micro-batches, if it is divisible."""
    share = case.batch.global_batch_size // case.world_size
    if share % parts:
        return case
    return dataclasses.replace(case, batch=Batch(case.batch.global_batch_size, share // parts, parts))


def _batch_norm_note(context: RankContext) -> str:
    """Describe the statistics of the model's first batch norm; empty: it has none."""
    for name, layer in batch_norm.batch_norm_layers(weights.meta_module(context.workload)).items():
        if batch_norm.is_synchronised(layer):
            return f"batch norm in {name} computes its statistics from one micro-batch of all ranks"
        return f"batch norm in {name} computes its statistics from the rows of one rank"
    return ""
