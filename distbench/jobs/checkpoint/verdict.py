"""Judge resumed trainings: bit-identical, within rounding, or different.

Two things are checked. Loading is a copy, so parameters and optimizer state must equal the saved ones bit
for bit, in any strategy. And the steps after it must equal those of the uninterrupted training: bit for bit
if the same strategy resumes at the same world size (unless its kernels are not deterministic), and up to
rounding if a different one resumes, because it sums in a different order.

The size of rounding was measured (two cores of a CPU, torch 2.13, DeepSpeed 0.19.8; 44 exchanges of 23
cases with ``single``, three steps, AdamW and SGD with and without momentum), in units of eps of the
coarsest dtype: see ``ROUNDING_LIMITS``. The error of a lost optimizer state is far larger: 0.6 to 0.8 of the
movement of the parameters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distbench import optimizers
from distbench.analysis.job_results import Gravity, Verdict
from distbench.core.case import Case
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.ipc.trial_files import NO_DROPOUT_KEY, SKETCH_COLUMNS, fingerprint_version
from distbench.jobs.checkpoint import FROM_FULL_STATE, FROM_SHARDS
from distbench.record import Record, RecordRow, Status

TensorRows = dict[str, RecordRow]
"""Fingerprints by tensor name."""
# from the best to the worst: the worst continuation decides
_GRAVITY: dict[str, Gravity] = {
    "same": "ok",
    "rounding": "ok",
    "lacking": "unknown",
    "failed": "bad",
    "differs": "bad",
}
_EPS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True)
class RoundingLimit:
    """Largest relative difference that counts as rounding."""

    per_eps: float
    """Relative difference in units of eps."""
    maximum: float
    """Upper bound of the limit: in 16 bits, that many eps would hide any error."""

    def for_case(self, case: Case) -> float:
        """Largest relative difference between trainings of *case* that counts as rounding."""
        precision = case.precision
        dtypes = {precision.compute, precision.reduce, precision.master, precision.optimizer_state}
        # Muon's updates, whose products FSDP2 sums in parts: 3 eps of bf16 in a case in fp32
        dtypes |= {optimizers.update_dtype(case.optimizer) or precision.compute}
        return min(self.per_eps * max(_EPS[dtype] for dtype in dtypes), self.maximum)


ROUNDING_LIMITS = {
    # measured: 1.2 eps in fp32, 0.006 eps in bf16
    "loss": RoundingLimit(64, 0.01),
    # measured: 1.4 eps in fp32, 0.07 eps in bf16
    "gradient norm": RoundingLimit(64, 0.02),
    # of all parameters together, relative to their movement since the checkpoint; measured: 4 eps in fp32
    # (250 if DeepSpeed's own Adam continues from torch's), 0.9 eps in bf16 (0.007); Adam turns noise around
    # zero into full steps
    "parameters": RoundingLimit(4096, 0.1),
}


@dataclass(frozen=True)
class ResumedTraining:
    """Comparison of one resumed training with the uninterrupted one."""

    case: Case
    judged_case_id: str
    """Id of the case that it judges: if the reference loads a state, the case that saved it."""
    training: str
    """State to resume from: sharded: own shards; full: own full state; exchanged: saved by another case."""
    source: str
    """Name of the case that saved the state."""
    word: str
    """same: bit for bit. rounding: within the rounding limits. differs. lacking: not tried."""
    step: int | None = None
    """First step that differs; the last one before the checkpoint if the loaded state differs."""
    what: str = ""
    """First difference there: ``loss``, ``gradient norm``, ``parameters``, or a tensor not restored."""
    difference: float = 0.0
    """Largest relative difference (of a loss, a norm, or all parameters relative to their movement)."""
    reason: str = ""
    """Reason why it was not tried."""
    way: str = FROM_FULL_STATE
    """Way from another case: directly, by its shards, or by the full state that it gathered."""

    def __str__(self) -> str:
        return f"{self.case.name} {self.outcome}"

    @property
    def outcome(self) -> str:
        """Loaded state, and the comparison of the steps after it."""
        own = {"sharded": "its own shards", "full": "its own full state"}
        kind = "shards" if self.way == FROM_SHARDS else "state"
        return f"from {own.get(self.training, f'the {kind} of {self.source}')}: {self._comparison()}"

    def _comparison(self) -> str:
        if self.word == "differs":
            off = (
                "missing or has another shape or dtype"
                if math.isinf(self.difference)
                else f"off by {self.difference:.1e}"
            )
            return f"not equivalent from step {self.step}: {self.what} is {off}"
        outcomes = {"same": "bit-identical", "lacking": f"not tried: {self.reason}"}
        return outcomes.get(self.word, f"equivalent within rounding ({self.difference:.1e})")

    def to_json(self) -> dict[str, Any]:
        """Fields as plain JSON types."""
        return {
            "case": self.case.name,
            "case_id": self.case.id,
            "training": self.training,
            "source": self.source,
            "way": self.way if self.training == "exchanged" else None,
            "verdict": self.word,
            "step": self.step,
            "what": self.what,
            "apart": self.difference,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class CheckpointEvidence:
    """Resumed trainings of one case, and of the reference from its state."""

    case_id: str
    continuations: tuple[ResumedTraining, ...]
    failures: tuple[str, ...]
    """Status and reason of each failed trial."""
    without_dropout: str = ""
    """Dropout of the model that was disabled; empty: none."""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the case: the worst continuation decides."""
        tried = [each for each in self.continuations if each.word != "lacking"]
        words = [each.word for each in tried] + ["failed"] * bool(self.failures)
        word = max(words, key=list(_GRAVITY).index, default="lacking")
        dropped = one_line(self.without_dropout)
        remarks = (
            (f"Resumed without dropout ({dropped}): checkpoints do not contain its random numbers",)
            if dropped
            else ()
        )
        return Verdict("checkpoint", word, _GRAVITY[word], self._sentence(word, tried), self, remarks=remarks)

    def _sentence(self, word: str, tried: Sequence[ResumedTraining]) -> str:
        if word == "failed":
            return self.failures[0]
        if word == "lacking":
            reasons = [each.reason for each in self.continuations]
            return f"not tried: {reasons[0]}" if reasons else "not tried"
        if wrong := [each for each in tried if each.word == "differs"]:
            more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
            return f"{wrong[0].outcome if wrong[0].case.id == self.case_id else wrong[0]}{more}"
        exact = sum(each.word == "same" for each in tried)
        return f"{len(tried)} continuations equivalent, {exact} of them bit-identical"

    def to_json(self) -> dict[str, Any]:
        """Continuations and failures."""
        return {
            "continuations": [each.to_json() for each in self.continuations],
            "failures": list(self.failures),
        }


def evidence_by_case(records: Sequence[Record]) -> dict[str, CheckpointEvidence]:
    """Evidence for each case that *records* of checkpoint trials are about, by case id."""
    resumed = group_by(resumed_trainings(records), lambda each: each.judged_case_id)
    return {
        case_id: CheckpointEvidence(
            case_id,
            tuple(resumed.get(case_id, ())),
            tuple(f"{record.status}: {record.reason}" for record in own if record.status.is_failure),
            next((text for record in own if (text := str(record.environment.get(NO_DROPOUT_KEY) or ""))), ""),
        )
        for case_id, own in group_by(records, _judged_case_id).items()
    }


def _judged_case_id(record: Record) -> str:
    options: Any = record.job.options
    return str(options.source_id) if options.role == "back" else record.case_id


def resumed_trainings(records: Sequence[Record]) -> list[ResumedTraining]:
    """Compare every resumed training in *records* with its uninterrupted one."""
    measured = [record for record in records if record.status is Status.MEASURED]
    saved = {
        record.case_id: _RecordedTraining(record, "continued")
        for record in measured
        if record.job.options.role == "case"
    }
    return [
        _resumed_training(record, part, saved.get(part["source_id"]))
        for record in measured
        for part in record.tables.get("checkpoint_parts", [])
    ]


class _RecordedTraining:
    """Values of one training in a record."""

    def __init__(self, record: Record, name: str) -> None:
        curve, tensors = (
            [row for row in record.tables.get(table, []) if row["training"] == name]
            for table in ("checkpoint_curve", "checkpoint_tensors")
        )
        self.curve = {row["step"]: row for row in curve}
        self.tensors: dict[tuple[int, str], TensorRows] = defaultdict(dict)
        for row in tensors:
            self.tensors[row["step"], row["of"]][row["tensor"]] = row
        self.fingerprint_versions = {fingerprint_version(row["digest"]) for row in tensors}
        """Versions of its fingerprints; there is only one."""


def _resumed_training(record: Record, part: RecordRow, saved: _RecordedTraining | None) -> ResumedTraining:
    training, source = part["training"], part["source"]
    # earlier versions have no other way
    way = part.get("way") or FROM_FULL_STATE
    resumed = partial(ResumedTraining, record.case, _judged_case_id(record), training, source, way=way)
    lacking = part["lacking"] or ("" if saved else f"{source} has no result")
    loaded = _RecordedTraining(record, training)
    if not lacking and saved and saved.fingerprint_versions != loaded.fingerprint_versions:
        lacking = f"{source} was saved by another version of distbench; start a new run"
    if lacking or saved is None:
        return resumed("lacking", reason=lacking)
    limits = {name: limit.for_case(record.case) for name, limit in ROUNDING_LIMITS.items()}
    largest = 0.0
    for step, what, difference in _differences(saved, loaded, sees_moments=not part["unseen"]):
        if not difference <= limits.get(what, 0.0):
            return resumed("differs", step, what, difference)
        largest = max(largest, difference)
    return resumed("rounding" if largest else "same", difference=largest)


def _differences(
    saved: _RecordedTraining, loaded: _RecordedTraining, *, sees_moments: bool
) -> Iterator[tuple[int, str, float]]:
    """Yield (step, quantity, relative difference), in the order of events.

    *saved* never stopped, *loaded* resumed from its checkpoint; *sees_moments*: the engine that loaded can
    show its optimizer state.
    """
    start = min(saved.curve) - 1
    kinds = [of for step, of in saved.tensors if step == start and (sees_moments or of == "parameter")]
    # the most informative first: parameters, then moments, then the number of steps
    for of in sorted(kinds, key=lambda of: (of != "parameter", of == "step", of)):
        for what, difference in _restore_differences(of, saved.tensors[start, of], loaded.tensors[start, of]):
            yield start, what, difference
    for step, row in sorted(saved.curve.items()):
        other = loaded.curve.get(step, {})
        yield step, "loss", _relative(row["loss"], other.get("loss"))
        yield step, "gradient norm", _relative(row["grad_norm"], other.get("grad_norm"))
        ends = (training.tensors[step, "parameter"] for training in (saved, loaded))
        yield step, "parameters", _relative_to_update(saved.tensors[start, "parameter"], *ends)


def _restore_differences(of: str, saved: TensorRows, loaded: TensorRows) -> Iterator[tuple[str, float]]:
    """Yield the first tensor of a kind that differs from the saved one, with the number of others."""
    wrong = [name for name, row in saved.items() if loaded.get(name, {}).get("digest") != row["digest"]]
    if wrong:
        name, norm = wrong[0], saved[wrong[0]]["norm"]
        difference = _distance({name: saved[name]}, loaded) / norm if name in loaded and norm else math.inf
        what = name if of == "parameter" else f"{of} of {name}"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        # a difference too small for the sketch is still a difference
        yield f"{what}{more}", difference or math.inf


def _relative_to_update(before: TensorRows, saved: TensorRows, loaded: TensorRows) -> float:
    """Distance of the parameters *loaded* from *saved*, relative to their movement since *before*."""
    if saved.keys() != loaded.keys():
        return math.inf
    if all(row["digest"] == loaded[name]["digest"] for name, row in saved.items()):
        return 0.0
    moved = _distance(saved, before)
    return _distance(saved, loaded) / moved if moved else math.inf


def _distance(tensors: TensorRows, others: TensorRows) -> float:
    """L2 norm of the difference between *tensors* and *others* of the same names, from their sketches."""
    return math.hypot(
        *(row[key] - others[name][key] for name, row in tensors.items() for key in SKETCH_COLUMNS)
    )


def _relative(expected: float | None, found: float | None) -> float:
    if expected is None or found is None:
        return math.inf
    return abs(found - expected) / abs(expected) if expected else abs(found)
