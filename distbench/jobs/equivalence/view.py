"""View ``equivalence``: verdict on each case relative to its reference, with the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from distbench.analysis.case_names import short_names
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.jobs.equivalence.arms import (
    DIFFERS,
    EQUIVALENT,
    FIXED_TOLERANCE,
    NOT_CHECKED,
    ROUNDING,
    EquivalenceArm,
    EquivalenceEvidence,
    LargestDeviation,
    quantity_text,
)
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts.figures import MAX_CHART_CASES, Chart, hover, make_figure, reference_line, scatter
from distbench.views.charts.palette import QUANTITIES

_FAMILIES = {
    "loss": ("loss", "circle"),
    "grad_norm": ("gradient norm", "square"),
    "gradient": ("gradients of the first step", "diamond"),
    "size": ("sizes of gradients and updates", "star"),
    "parameter": ("parameters", "triangle-up"),
    "buffer": ("buffers", "cross"),
}
"""Column -> name and symbol of its marks."""
_COLUMNS = {"gradient_size": "size", "update_size": "size", "mean_size": "size"}
"""Family of quantities -> its column, if that is not its own name."""
_RATIO = "{:.2f}".format
_EMPTY_NOTE = "Equivalence was not checked; run with distbench run SUITE --check."


def _error_text(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _error_field(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "", "lower", format=_error_text)


class EquivalenceView(View):
    """Verdict on each case relative to its reference, with the evidence."""

    title: ClassVar[str] = "Equivalence"
    order: ClassVar[int] = 60
    prints_table: ClassVar[bool] = True
    caption: ClassVar[str] = (
        "Each case and its reference (one process with the whole batch) trained a few steps from the "
        "same weights on the same batches, with the case's own optimizer and with SGD, in the case's "
        "dtype and in fp32. The table shows the largest relative error of the loss, of the gradient "
        "norm, of the first step's gradients, of the parameter updates and of buffers, and in 16 bits "
        "of the sizes of gradients and updates; its fraction of the envelope that rounding allows "
        "(above 1: differs, by design or by an error); the smallest error that would have been "
        "detected in half of the tensors, and in their mean size; and the distance of the trained "
        "parameters from an fp64 training, next to the reference's. Lower is better throughout."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE_FIELDS,
        Field("optimizer", "optimizer", "Optimizer of this training.", type="varchar"),
        Field("compute", "dtype", "Dtype that this training computes in.", type="varchar"),
        Field(
            "verdict",
            "",
            "equivalent, equivalent within rounding, differs by design, differs or not checked.",
            type="varchar",
        ),
        Field("reference", "", "Name of the reference.", type="varchar"),
        Field("work", "", "full, or a description of the reduced work that was trained.", type="varchar"),
        _error_field("loss", "loss", "Largest relative error of the loss."),
        _error_field("grad_norm", "norm", "Largest relative error of the gradient norm."),
        _error_field("gradient", "gradient", "Largest relative error of the first step's gradients."),
        _error_field("parameter", "update", "Largest relative error of the parameter updates."),
        _error_field("buffer", "buffers", "Largest relative error of the buffers."),
        _error_field(
            "size",
            "size",
            "Largest relative error of the size of a gradient or update, or of their mean.",
        ),
        Field(
            "envelope", "envelope", "Fraction of the envelope; above 1: differs.", "", "lower", format=_RATIO
        ),
        _error_field(
            "seen_gradient",
            "detects grad.",
            "Smallest error of a gradient that would be detected (median tensor).",
        ),
        _error_field(
            "seen_update",
            "detects upd.",
            "Smallest error of an update that would be detected (median tensor).",
        ),
        _error_field(
            "seen_size",
            "detects size",
            "Smallest error of the mean size of gradients or updates that would be detected.",
        ),
        _error_field("fp64", "fp64", "Distance of the trained parameters from an fp64 training."),
        _error_field("reference_fp64", "fp64 of ref.", "The same distance of the reference."),
    )

    def table(self, run: RunAnalysis) -> Table:
        """Table with a row per case and optimizer that was checked."""
        checked = run.cases_with_evidence(EquivalenceEvidence)
        names = short_names([row.case for row, _ in checked])
        rows = [_row(row, names[row.case.id], arm) for row, found in checked for arm in found.arms]
        made = self.make_table(rows, _notes(checked, names))
        if any(row.value("size") is not None for row in rows):
            return made
        # only 16-bit cases have them
        without = [
            replace(each, heading="") if each.name in ("size", "seen_size") else each for each in made.fields
        ]
        return replace(made, fields=tuple(without))

    def charts(self, run: RunAnalysis) -> list[Chart]:
        """Distance from the reference, if any case was checked and not all numbers are bit-identical."""
        checked = run.cases_with_evidence(EquivalenceEvidence)
        deviating = [(row, found) for row, found in checked if found.limit_share > 0]
        if not deviating:
            return []
        # a reader looks for the furthest ones
        places = sorted(deviating, key=lambda pair: pair[1].limit_share, reverse=True)[:MAX_CHART_CASES]
        names = run.short_names([row for row, _ in places])
        words = [evidence.word for _, evidence in checked]
        cut = (
            f"Only the {MAX_CHART_CASES} furthest of {len(deviating):,} are shown."
            if len(deviating) > MAX_CHART_CASES
            else ""
        )
        marks = [trace for family in _FAMILIES if (trace := _trace(places, family))["x"]]
        caption = (
            f"{words.count(DIFFERENT_BY_DESIGN):,} differ by design, " if DIFFERENT_BY_DESIGN in words else ""
        )
        limit = reference_line([1, 1], [-0.5, len(places) - 0.5], width=2)
        return [
            Chart(
                "equivalence-envelope",
                "Distance from the reference",
                "Each mark is the largest difference of one kind over all steps and tensors, as a "
                "fraction of the rounding envelope; further left is closer to the reference, and to "
                "the right of the grey line at 1 the case is not equivalent. The axis is "
                "logarithmic.",
                make_figure(
                    [limit, *marks],
                    "fraction of the envelope (lower is better)",
                    rows=[*names.values()],
                    xaxis={"type": "log"},
                ),
                finding=f"{len(words):,} cases checked: {words.count(DIFFERS):,} differ, "
                f"{caption}{words.count(EQUIVALENT):,} are bit-identical.",
                left_out=cut,
            )
        ]

    def has_warning(self, run: RunAnalysis) -> bool:
        """True if any case differs, by design or not, or could not be checked."""
        checked = run.cases_with_evidence(EquivalenceEvidence)
        return any(found.word not in (EQUIVALENT, ROUNDING) for _, found in checked)


def _row(row: CaseSummary, name: str, arm: EquivalenceArm) -> TableRow:
    errors: dict[str, float] = {}
    for worst in arm.worst:
        column = _column(worst)
        errors[column] = max(errors.get(column, 0.0), worst.error)
    seen = {sight.family: sight.typical for sight in arm.sights}
    unchecked = arm.word == NOT_CHECKED
    absent = TableCell(None, reason=arm.reason)
    return TableRow(
        {
            **case_cells(row.case, name),
            "optimizer": arm.optimizer,
            "compute": arm.compute,
            "verdict": arm.word,
            "reference": arm.reference,
            "work": arm.work or "full",
            **{family: absent if unchecked else errors.get(family) for family in _FAMILIES},
            "envelope": absent if unchecked else arm.limit_share,
            "seen_gradient": absent if unchecked else seen.get("gradient"),
            "seen_update": absent if unchecked else seen.get("parameter"),
            "seen_size": absent if unchecked else seen.get("mean_size"),
            "fp64": absent if unchecked else arm.from_fp64,
            "reference_fp64": absent if unchecked else arm.reference_from_fp64,
        }
    )


def _notes(checked: Sequence[tuple[CaseSummary, EquivalenceEvidence]], names: dict[str, str]) -> list[str]:
    """Verdicts, each with its cases, and their references and remarks."""
    if not checked:
        return [_EMPTY_NOTE]
    verdicts = group_pairs(
        (ROUNDING if found.word == ROUNDING else found.sentence(), names[row.case.id])
        for row, found in checked
    )
    notes = [f"{word[0].upper()}{word[1:]}: {', '.join(of)}." for word, of in verdicts.items()]
    arms = [arm for _, found in checked for arm in found.arms]
    references = dict.fromkeys(one_line(arm.reference) for arm in arms if arm.reference)
    remarks = dict.fromkeys(one_line(note) for arm in arms for note in arm.notes)
    tolerances = dict.fromkeys(row.case.precision.compute for row, _ in checked)
    works = group_pairs((arm.work, names[row.case.id]) for row, found in checked for arm in found.arms)
    for work, of in works.items():
        if work:
            notes.append(f"On reduced work ({work}): {', '.join(dict.fromkeys(of))}.")
    if references:
        notes.append(f"Compared with: {', '.join(references)}.")
        notes.append(
            "For reference, the fixed tolerances of torch.testing.assert_close: "
            + ", ".join(f"{dtype} {FIXED_TOLERANCE[dtype]:.1e}" for dtype in tolerances)
            + "."
        )
    sentences = dict.fromkeys(text for _, found in checked for text in found.remarks)
    return [*notes, *(f"{note[0].upper()}{note[1:]}." for note in (*remarks, *sentences))]


def _trace(checked: Sequence[tuple[CaseSummary, EquivalenceEvidence]], family: str) -> dict[str, Any]:
    """Marks of one kind of quantity: one per case and optimizer that it was trained with."""
    name, symbol = _FAMILIES[family]
    marks = [
        (place, row, arm, worst)
        for place, (row, found) in enumerate(checked)
        for arm in found.arms
        for worst in arm.worst
        # a logarithmic axis has no place for 0 or infinity
        if _column(worst) == family and 0 < worst.of_limit < math.inf
    ]
    return scatter(
        name,
        [worst.of_limit for *_, worst in marks],
        [place for place, *_ in marks],
        hovers=[hover(row.case.name, *_hover_lines(arm, worst)) for _, row, arm, worst in marks],
        cases=[row.case.id for _, row, *_ in marks],
        marker={"color": QUANTITIES[family], "symbol": symbol, "size": 9},
    )


def _column(worst: LargestDeviation) -> str:
    family = worst.place.family
    return _COLUMNS.get(family, family)


def _hover_lines(arm: EquivalenceArm, worst: LargestDeviation) -> list[str]:
    return [
        f"{quantity_text(worst)}, step {worst.place.step}, trained with {arm.optimizer} in {arm.compute}",
        f"relative error {worst.error:.2g}, {worst.of_limit:.2g} of the envelope",
    ]
