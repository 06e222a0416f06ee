"""How much moved between ranks, compared with theory, and why the two differ."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.analysis.communication import moving, steps_of
from distbench.analysis.settings import description_of
from distbench.case import BYTES
from distbench.record import Record
from distbench.units import bytes_text

SCALAR = 1024
"""Bytes; a collective no larger, of a kind that theory does not have, carries norms or flags."""
EXPLAINED = 0.01
"""Share of the expected volume that may stay without a known cause."""


@dataclass(frozen=True)
class Cause:
    """Why a volume differs from theory."""

    text: str
    bytes: float
    """Signed: what it adds to the expected volume."""


@dataclass(frozen=True)
class Volume:
    """Payload of a rank's step by operation, measured and expected, and why they differ."""

    measured: dict[str, float]
    theory: dict[str, float]
    causes: tuple[Cause, ...]
    left: dict[str, float]
    """Operation -> bytes that no cause explains, signed."""

    @property
    def unexplained(self) -> float:
        """Share of the expected volume that no cause explains."""
        whole = sum(self.theory.values()) or 1.0
        return sum(abs(size) for size in self.left.values()) / whole

    @property
    def reduces_whole(self) -> bool:
        """Whether gradients were all-reduced although theory reduce-scatters them."""
        return "reduce_scatter" in self.theory and "reduce_scatter" not in self.measured


def volume(record: Record) -> Volume | None:
    """Volume of one trial compared with theory; None if its strategy has no communication model."""
    if "comm_bytes_theory" not in record.values:
        return None
    return _Ledger(record).balance()


def explanation(record: Record) -> str:
    """How the volume of a trial compares with theory, in words; empty if nothing moves."""
    moved = volume(record)
    if moved is None:
        return f"no theory to compare with: {record.absent.get('comm_bytes_theory', 'not measured')}."
    if not moved.theory and not moved.measured:
        return ""
    parts = " and ".join(f"{op} {bytes_text(size)}" for op, size in moved.theory.items())
    theory = f"theory: {bytes_text(sum(moved.theory.values()))}" + (f" ({parts})" if parts else "")
    clauses = [f"{bytes_text(sum(moved.measured.values()))} moved, {theory}"]
    clauses += [cause.text for cause in moved.causes]
    if moved.unexplained > EXPLAINED:
        left = (f"{'+' if size > 0 else '−'}{bytes_text(abs(size))} {op}" for op, size in moved.left.items())
        clauses.append(f"no known cause for {', '.join(left)}")
    return "; ".join(clauses) + "."


class _Ledger:
    """Assigns the difference between measurement and theory to its known causes, one after another."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._rows = moving(record)
        self._steps = steps_of(self._rows) or 1
        self._theory = {row["op"]: row["bytes"] for row in record.tables.get("collectives_theory", [])}
        self._measured = self._sum_by_op()
        every = {**self._theory, **self._measured}
        self._left = {op: self._measured.get(op, 0.0) - self._theory.get(op, 0.0) for op in every}
        self._causes: list[Cause] = []

    def balance(self) -> Volume:
        """Difference with its causes."""
        self._reduced_whole()
        self._stood_whole()
        self._scalars()
        self._known_deviations()
        left = {op: size for op, size in self._left.items() if size}
        return Volume(self._measured, self._theory, tuple(self._causes), left)

    def _book(self, op: str, size: float, text: str) -> None:
        self._left[op] -= size
        self._causes.append(Cause(text, size))

    def _reduced_whole(self) -> None:
        extra = self._left.get("all_reduce", 0.0)
        if "reduce_scatter" not in self._theory or "reduce_scatter" in self._measured or extra <= 0:
            return
        moved = min(self._theory["reduce_scatter"], extra)
        self._left["all_reduce"] -= moved
        text = "of gradients were all-reduced, not reduce-scattered: the same payload, twice the bytes"
        self._causes.append(Cause(f"{bytes_text(moved)} {text} on the wire", 0.0))
        self._left["reduce_scatter"] += moved

    def _stood_whole(self) -> None:
        standing = self._record.values.get("comm_standing_bytes", 0.0)
        if not standing or "all_gather" not in self._theory:
            return
        # two passes over the layers need every parameter; what theory gathers once stays gathered by design
        passes = 2 * self._record.case.batch.gradient_accumulation_steps
        size = BYTES[self._record.case.precision.compute]
        needed = passes * self._record.effective["parameters"] * size
        saved = standing - (needed - self._theory["all_gather"])
        if saved > 0:
            self._book(
                "all_gather", -saved, f"{bytes_text(saved)} were already gathered and not gathered again"
            )

    def _scalars(self) -> None:
        for op, size in self._sum_by_op(SCALAR).items():
            if op not in self._theory:
                self._book(op, size, f"{bytes_text(size)} of norms and flags")

    def _known_deviations(self) -> None:
        effective = self._record.effective
        for deviation in description_of(self._record.case, self._record).deviations:
            extra = self._left.get(deviation.of, 0.0)
            if extra > 0:
                values = ", ".join(f"{name} = {effective.get(name)}" for name in deviation.settings)
                text = f"{bytes_text(extra)} {deviation.why}" + (f" ({values})" if values else "")
                self._book(deviation.of, extra, text)

    def _sum_by_op(self, most: float = float("inf")) -> dict[str, float]:
        """Bytes of a rank per step by operation, of collectives of at most *most* bytes each."""
        found: dict[str, float] = {}
        for row in self._rows:
            if row["bytes"] <= most:
                found[row["op"]] = found.get(row["op"], 0.0) + row["bytes"] / self._steps
        return found
