"""The view ``equivalence``: whether each case is the same training as its reference, with the evidence."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.equivalence import FIXED_TOLERANCE, NOT_CHECKED, Arm
from distbench.analysis.names import short_names
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import one_line
from distbench.analysis.verdicts import furthest, sentence
from distbench.report.tables import Table

_CAPTION = (
    "Each case and its reference (one process with the whole batch) trained some steps from the same weights "
    "on the same batches, with the case's own optimizer and with SGD. Largest relative error of the loss, of "
    "the gradient norm, of the first step's gradients and of what the parameters have moved; its part of the "
    "envelope that rounding makes of the reference (above 1: differs); and the distance of the trained "
    "parameters from an fp64 training, beside the reference's own. Smaller is better throughout."
)
_HEADINGS = ("case", "optimizer", "loss", "norm", "gradient", "moved", "envelope", "fp64", "its ref.")
_FAMILIES = ("loss", "grad_norm", "gradient", "parameter")
_UNKNOWN = "–"
_NOTHING = "Nothing was checked: distbench run SUITE --check does it."


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    checked = [row for row in cases if row.verdict]
    names = short_names([row.case for row in checked])
    rows = [_row(names[row.case.id], arm) for row in checked if row.verdict for arm in row.verdict.arms]
    return Table(
        "equivalence", "Same training?", _CAPTION, _HEADINGS, tuple(rows), tuple(_notes(checked, names))
    )


def _row(name: str, arm: Arm) -> tuple[str, ...]:
    errors = {worst.place.family: worst.error for worst in arm.worst}
    if arm.word == NOT_CHECKED:
        return (name, one_line(arm.optimizer), *[_UNKNOWN] * (len(_HEADINGS) - 2))
    cells = [_number(errors.get(family)) for family in _FAMILIES]
    exact = [_number(arm.from_fp64), _number(arm.reference_from_fp64)]
    return (name, one_line(arm.optimizer), *cells, f"{furthest(arm):.2f}", *exact)


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else "0" if value == 0 else f"{value:.1e}"


def _notes(cases: Sequence[CaseSummary], names: dict[str, str]) -> list[str]:
    """Return the verdicts, each with the cases that have it, and what they were held against."""
    if not cases:
        return [_NOTHING]
    said: dict[str, list[str]] = {}
    for row in cases:
        if row.verdict:
            word = sentence(row.verdict)
            said.setdefault(word.partition(", at most")[0], []).append(names[row.case.id])
    notes = [f"{word[0].upper()}{word[1:]}: {', '.join(of)}." for word, of in said.items()]
    arms = [arm for row in cases if row.verdict for arm in row.verdict.arms]
    references = dict.fromkeys(one_line(arm.reference) for arm in arms if arm.reference)
    told = dict.fromkeys(one_line(note) for arm in arms for note in arm.notes)
    tolerances = dict.fromkeys(row.case.precision.compute for row in cases)
    if references:
        notes.append(f"Held against: {', '.join(references)}.")
        notes.append(
            "Fixed tolerances, for comparison only (torch.testing.assert_close): "
            + ", ".join(f"{dtype} {FIXED_TOLERANCE[dtype]:.1e}" for dtype in tolerances)
            + "."
        )
    return [*notes, *(f"{note[0].upper()}{note[1:]}." for note in told)]
