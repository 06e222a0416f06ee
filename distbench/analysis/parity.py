"""Fair fight? What the live engines of a comparison really did, held against the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distbench.analysis.settings import settings
from distbench.analysis.summary import CaseSummary

Kind = Literal["work", "speed", "strategy", "unknown"]

# what may differ in effective and what that means: the first pattern that a key begins with
_KINDS: tuple[tuple[str, Kind, str], ...] = (
    ("parameters_on", "strategy", "where sharded parameters live"),
    ("parameters", "work", "another model"),
    ("global_batch_size", "work", "another number of samples in a step"),
    ("dtypes.parameters", "strategy", "where a framework keeps its master weights"),
    ("dtypes.compute", "work", "computes in another dtype"),
    ("dtypes.gradients", "work", "accumulates gradients in another dtype"),
    ("dtypes.reduce", "work", "reduces gradients in another dtype"),
    ("dtypes.master", "work", "updates weights of another dtype"),
    ("dtypes.optimizer_state", "work", "keeps optimizer states in another dtype"),
    ("optimizer.kernel", "work", "another implementation of the update"),
    ("optimizer.class", "work", "another class of optimizer"),
    ("optimizer.", "work", "another hyper-parameter"),
    ("clip_grad_norm", "work", "clips gradients otherwise"),
    ("loss_scale", "work", "scales the loss otherwise"),
    ("activation_checkpointing", "work", "recomputes another part of the forward pass"),
    ("process.seed", "work", "another seed"),
    ("process.deterministic", "speed", "another choice of algorithms"),
    ("process.matmul_precision", "work", "multiplies fp32 matrices in another precision"),
    ("process.tf32", "work", "multiplies fp32 matrices in another precision"),
    ("process.threads", "speed", "another number of threads a rank"),
    ("process.warm", "speed", "ranks started otherwise"),
    ("micro_batch_size", "strategy", "how the same samples are cut up"),
    ("gradient_accumulation_steps", "strategy", "how the same samples are cut up"),
    ("world_size", "strategy", "how the same samples are cut up"),
    ("engine", "strategy", "the strategy itself"),
    *(
        (key, "strategy", "how the strategy shards, wraps, buckets or offloads")
        for key in (
            "units",
            "mesh",
            "placements",
            "reshard",
            "sharding_strategy",
            "cpu_offload",
            "offload",
            "zero_stage",
            "optimizer_wrapper",
            "bucket_bytes_cap",
            "reduce_bucket_size",
            "allgather_bucket_size",
            "overlap_comm",
            "gradient_as_bucket_view",
            "static_graph",
            "param_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "prefetch_bucket_size",
        )
    ),
)
_MISSING = "not told"


@dataclass(frozen=True)
class Difference:
    """One setting in which a case differs from the reference of its comparison."""

    key: str
    expected: str
    """The reference's."""
    found: str
    kind: Kind
    """work: the numbers belong to other work. speed: the same work at another pace. strategy: what
    the comparison is about. unknown: a key that nobody classified."""
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {self.found}, the reference has {self.expected}: {self.why}"


@dataclass(frozen=True)
class Comparison:
    """Cases that were asked to do the same work."""

    reference: CaseSummary
    cases: tuple[CaseSummary, ...]
    differences: dict[str, tuple[Difference, ...]]
    """Case id -> its differences from the reference; and of its trials from one another."""

    def findings(self, row: CaseSummary) -> list[Difference]:
        """Return the differences of a case that change its work, or that nobody can judge."""
        return [each for each in self.differences[row.case.id] if each.kind in ("work", "unknown")]


def comparisons(cases: Sequence[CaseSummary]) -> list[Comparison]:
    """Return the measured cases by the work that they were asked to do, each group with its reference.

    The reference is ``single``, else ``ddp``, else the first case. What a suite asks for on purpose
    (another precision, optimizer or global batch) makes another comparison.
    """
    groups: dict[str, list[CaseSummary]] = {}
    for row in cases:
        if row.detail is not None:
            groups.setdefault(_asked(row), []).append(row)
    return [_compare(rows) for rows in groups.values()]


def findings(cases: Sequence[CaseSummary]) -> dict[str, list[Difference]]:
    """Return the findings of each case that has any, by case id."""
    return {
        row.case.id: found
        for comparison in comparisons(cases)
        for row in comparison.cases
        if (found := comparison.findings(row))
    }


@dataclass(frozen=True)
class Footnotes:
    """Marks beside the numbers that a finding touches, and what they mean."""

    marks: dict[str, str]
    """Case id -> its marks, ``[a][b]``."""
    sentences: dict[str, str]
    """Mark -> the finding; the same finding has the same mark in every case."""


def footnotes(cases: Sequence[CaseSummary]) -> Footnotes:
    """Return the footnotes of all findings of *cases*."""
    letters: dict[str, str] = {}
    found = findings(cases)
    for each in (difference for differences in found.values() for difference in differences):
        letters.setdefault(str(each), f"[{_letter(len(letters))}]")
    marks = {case_id: "".join(sorted(letters[str(each)] for each in rows)) for case_id, rows in found.items()}
    return Footnotes(marks, {mark: sentence for sentence, mark in letters.items()})


def _asked(row: CaseSummary) -> str:
    case = row.case
    asked = (case.workload, case.data, case.device, case.precision, case.optimizer, case.seed)
    return repr((*asked, case.batch.global_batch_size, case.activation_checkpointing))


def _compare(rows: list[CaseSummary]) -> Comparison:
    order = {"single": 0, "ddp": 1}
    reference = min(rows, key=lambda row: (order.get(row.case.label, 2), row.case.world_size))
    assert reference.detail is not None
    expected = settings(reference.detail)
    differences = {row.case.id: tuple(_differences(expected, row)) for row in rows}
    return Comparison(reference, tuple(rows), differences)


def _differences(expected: dict[str, Any], row: CaseSummary) -> Iterator[Difference]:
    assert row.detail is not None
    found = settings(row.detail)
    for key in sorted({**expected, **found}):
        kind, why = _classified(key)
        a, b = expected.get(key, _MISSING), found.get(key, _MISSING)
        # a single process reduces nothing, and settings of a strategy exist only there
        silent = (key == "dtypes.reduce" and None in (a, b)) or (kind == "strategy" and _MISSING in (a, b))
        if a != b and not silent:
            yield Difference(key, _text(a), _text(b), kind, why)
    for key in row.unsteady:
        yield Difference(key, "one value", "several", _classified(key)[0], "its own trials differ")


def _classified(key: str) -> tuple[Kind, str]:
    for pattern, kind, why in _KINDS:
        if key.startswith(pattern):
            return kind, why
    return "unknown", "nobody has said what this setting means for the work"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _letter(number: int) -> str:
    """Return a, b, ... z, aa, ab, ..."""
    head, tail = divmod(number, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)
