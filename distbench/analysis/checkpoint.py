"""Whether a case goes on as the same training from a checkpoint: a pure function of records.

Two things are asked of what was loaded. It is a copy, so parameters and optimizer state must be those
that were saved, bit for bit, in whatever strategy. And the steps after it must be those of the training
that never stopped: bit for bit where the same strategy goes on at the same world size (unless its
kernels are not deterministic), and up to rounding where another one does, which adds up in another order.

What counts as rounding was measured (two cores of a CPU, torch 2.13, DeepSpeed 0.19.8; 44 exchanges of 23
cases with ``single``, three steps, AdamW and SGD with and without momentum), in units of eps of the
coarsest dtype: see ``LIMITS``. A lost optimizer state is far above: the parameters then are 0.6 to 0.8
of their movement away.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distbench.case import Case, Precision
from distbench.record import Record, Status
from distbench.trial import SKETCH

Verdict = Literal["same", "rounding", "differs", "lacking"]

KIND = "checkpoint"

_EPS = {"fp64": 2.0**-52, "fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True)
class Limit:
    """How far apart two values may be and still be the same up to rounding."""

    per_eps: float
    """Relative difference in units of eps."""
    most: float
    """Limit of the limit: in 16 bits so many eps would hide anything."""

    def of(self, precision: Precision) -> float:
        """Return the largest relative difference that is rounding."""
        dtypes = (precision.compute, precision.reduce, precision.master, precision.optimizer_state)
        return min(self.per_eps * max(_EPS[dtype] for dtype in dtypes), self.most)


LIMITS = {
    # measured: 1.2 eps in fp32, 0.006 eps in bf16
    "loss": Limit(64, 0.01),
    # measured: 1.4 eps in fp32, 0.07 eps in bf16
    "gradient norm": Limit(64, 0.02),
    # of all parameters together, relative to how far they have moved since the checkpoint; measured:
    # 4 eps in fp32 (250 if DeepSpeed's own Adam goes on from torch's), 0.9 eps in bf16 (0.007); Adam
    # turns noise around zero into whole steps
    "parameters": Limit(4096, 0.1),
}


@dataclass(frozen=True)
class Continuation:
    """How one case went on from one checkpoint."""

    case: Case
    training: str
    """sharded: its own shards; full: its own whole state; exchanged: the whole state of another case."""
    source: str
    """Name of the case that had saved it."""
    verdict: Verdict
    """same: bit for bit. rounding: apart by no more. differs. lacking: it was not tried."""
    step: int | None = None
    """The first step from which on it differs; the last one before the checkpoint: what was loaded does."""
    what: str = ""
    """What differs there: ``loss``, ``gradient norm``, ``parameters``, or a tensor that was not restored."""
    apart: float = 0.0
    """Largest relative difference (of a loss, a norm, or all parameters against their movement)."""
    reason: str = ""
    """Why it is lacking."""

    def __str__(self) -> str:
        own = {"sharded": "its own shards", "full": "its own full state"}
        return (
            f"{self.case.name} from {own.get(self.training, f'the state of {self.source}')}: {self._told()}"
        )

    def _told(self) -> str:
        if self.verdict == "differs":
            off = "missing or nothing of the kind" if math.isinf(self.apart) else f"{self.apart:.1e} off"
            return f"not the same training from step {self.step} on: {self.what} is {off}"
        words = {"same": "the same, bit for bit", "lacking": f"not tried: {self.reason}"}
        return words.get(self.verdict, f"the same within rounding ({self.apart:.1e})")


def continuations(records: Sequence[Record]) -> list[Continuation]:
    """Return how every case went on from every checkpoint that it was given, by *records* of such jobs."""
    told = [record for record in records if record.status is Status.MEASURED]
    saved = {record.case_id: _Training(record, "continued") for record in told if _is_own(record)}
    return [
        _continuation(record, part, saved.get(part["source_id"]))
        for record in told
        for part in record.tables.get("checkpoint_parts", [])
    ]


def broken(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each case that does not go on as the same training, or that failed."""
    failed = [
        f"{record.case.name}: its checkpoints: {record.status}: {record.reason}"
        for record in records
        if record.status.is_failure
    ]
    return failed + [str(each) for each in continuations(records) if each.verdict == "differs"]


def to_json(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what ``run --json`` prints of checkpoints: valid JSON, null for a difference without a size."""
    return [
        {
            "case": each.case.name,
            "case_id": each.case.id,
            "training": each.training,
            "source": each.source,
            "verdict": each.verdict,
            "step": each.step,
            "what": each.what,
            "apart": each.apart if math.isfinite(each.apart) else None,
            "reason": each.reason,
        }
        for each in continuations(records)
    ]


def _is_own(record: Record) -> bool:
    return record.job.options.get("role") == "case"


class _Training:
    """What a record keeps of one of its trainings."""

    def __init__(self, record: Record, name: str) -> None:
        self.curve = {
            row["step"]: row for row in record.tables.get("checkpoint_curve", []) if row["training"] == name
        }
        self.tensors: dict[tuple[int, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for row in record.tables.get("checkpoint_tensors", []):
            if row["training"] == name:
                self.tensors[row["step"], row["of"]][row["tensor"]] = row


def _continuation(record: Record, part: Mapping[str, Any], saved: _Training | None) -> Continuation:
    case, training, source = record.case, part["training"], part["source"]
    lacking = part["lacking"] or ("" if saved else f"{source} has no result")
    if lacking or saved is None:
        return Continuation(case, training, source, "lacking", reason=lacking)
    pair = _Pair(saved, _Training(record, training), sees_moments=not part["unseen"])
    limits = {name: limit.of(case.precision) for name, limit in LIMITS.items()}
    largest = 0.0
    for step, what, apart in pair.differences():
        if not apart <= limits.get(what, 0.0):
            return Continuation(case, training, source, "differs", step, what, apart)
        largest = max(largest, apart)
    return Continuation(case, training, source, "rounding" if largest else "same", apart=largest)


@dataclass(frozen=True)
class _Pair:
    """A training that never stopped, and one that went on from its checkpoint."""

    saved: _Training
    loaded: _Training
    sees_moments: bool = True
    """Whether the engine that loaded could show its optimizer state."""

    def differences(self) -> Iterator[tuple[int, str, float]]:
        """Yield (step, what, relative difference), in the order in which things happen."""
        start = min(self.saved.curve) - 1
        kinds = [of for step, of in self.saved.tensors if step == start]
        # what says most comes first: parameters, then moments, then how many steps were counted
        for of in sorted(kinds, key=lambda of: (of != "parameter", of == "step", of)):
            if self.sees_moments or of == "parameter":
                yield from ((start, what, apart) for what, apart in self._loaded_wrongly(start, of))
        for step, row in sorted(self.saved.curve.items()):
            other = self.loaded.curve.get(step, {})
            yield step, "loss", _relative(row["loss"], other.get("loss"))
            yield step, "gradient norm", _relative(row["grad_norm"], other.get("grad_norm"))
            yield step, "parameters", self._against_movement(start, step)

    def _loaded_wrongly(self, start: int, of: str) -> Iterator[tuple[str, float]]:
        """Yield the first tensor of that kind that is not what was saved, with the number of the others."""
        saved, found = self.saved.tensors[start, of], self.loaded.tensors[start, of]
        wrong = [
            name for name in saved if name not in found or found[name]["digest"] != saved[name]["digest"]
        ]
        if wrong:
            row, other = saved[wrong[0]], found.get(wrong[0])
            apart = _distance([(row, other)]) / row["norm"] if other and row["norm"] else math.inf
            told = wrong[0] if of == "parameter" else f"{of} of {wrong[0]}"
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            # a difference that the sketch is too coarse to see is one all the same
            yield f"{told}{more}", apart or math.inf

    def _against_movement(self, start: int, step: int) -> float:
        """Return how far apart the parameters are after *step*, relative to their movement since *start*."""
        before, saved = self.saved.tensors[start, "parameter"], self.saved.tensors[step, "parameter"]
        loaded = self.loaded.tensors[step, "parameter"]
        if saved.keys() != loaded.keys():
            return math.inf
        if all(row["digest"] == loaded[name]["digest"] for name, row in saved.items()):
            return 0.0
        moved = _distance([(row, before[name]) for name, row in saved.items()])
        apart = _distance([(row, loaded[name]) for name, row in saved.items()])
        return apart / moved if moved else math.inf


def _distance(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> float:
    """Return the length of the difference of tensors, by their sketches."""
    return math.sqrt(sum((one[key] - other[key]) ** 2 for one, other in pairs for key in SKETCH))


def _relative(expected: float | None, found: float | None) -> float:
    if expected is None or found is None:
        return math.inf
    return abs(found - expected) / abs(expected) if expected else abs(found)
