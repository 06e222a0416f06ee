"""Table of the extrapolation of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.extrapolation import (
    STEP,
    ExtrapolatedPoint,
    ExtrapolatedSeries,
    unusable_reason,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.run_probes import RunProbes
from distbench.core.grouping import group_pairs
from distbench.core.machine import Machine
from distbench.core.text import join_limited
from distbench.core.units import format_bitrate, format_duration, format_number, format_percent, join_words
from distbench.prediction import PredictedValue, Term
from distbench.prediction.extrapolation import MAX_INTERVAL_FACTOR
from distbench.system.gpu_data_sheets import DATA_SHEETS
from distbench.tables.table import Field, Table, TableCell, TableRow

_TERMS: tuple[Term, ...] = ("compute", "communication", "bubble", "update", "host")
_CAPTION = (
    "measured: as show has it. predicted: the step on the most measured devices, times the ratio of two "
    "predicted steps, with the interval that should contain 90 % of measurements. efficiency: tokens/s of a "
    "device over those of a device of that measured case. scaling loss: the part of a step whose share of "
    "device time grows most. fits: whether tensors fit into the memory of a device, by formulas."
)


def _ends(name: str, doc: str, unit: str) -> tuple[Field, Field]:
    return Field(f"{name}_low", "", f"Lower end of {doc}.", unit), Field(
        f"{name}_high", "", f"Upper end of {doc}.", unit
    )


_FIELDS = (
    # the heading above its rows
    Field("case", "", "Case without its number of devices.", type="varchar"),
    Field("devices", "devices", "Number of devices.", type="bigint"),
    Field("kind", "", "measured or predicted.", type="varchar"),
    Field("scaling", "", "weak: each device keeps its samples; strong: all share the same.", type="varchar"),
    Field("step", "step", "Length of a step.", "s", "lower"),
    *_ends("step", "its interval", "s"),
    Field(THROUGHPUT, "tokens/s", "Of all devices.", "tokens/s", "higher", format=format_number),
    *_ends(THROUGHPUT, "its interval", "tokens/s"),
    Field("efficiency", "efficiency", "Relative to the most measured devices.", "", "higher"),
    *_ends("efficiency", "its interval", ""),
    Field(
        "loss_term", "scaling loss", "Part of a step whose share of device time grows most.", type="varchar"
    ),
    Field("loss_share", "", "What it gains, over all device time."),
    Field("fits", "fits", "yes, no or unsure.", type="varchar"),
    Field("ratio", "", "Predicted step over that on the most measured devices."),
    *(Field(f"{term}_ratio", "", f"Ratio of the term {term}.") for term in _TERMS),
    Field("source", "", "Source of the ratio: probe or data sheet.", type="varchar"),
)


def extrapolation_table(
    run: RunAnalysis,
    series: Sequence[ExtrapolatedSeries],
    machine: Machine,
    probes: RunProbes,
    *,
    on: Machine | None = None,
) -> Table:
    """Table of *series* of *run*, with the reasons for what is refused.

    Args:
        machine: Nodes like those of the run.
        probes: Those that the series may be from, and those that they are not from.
        on: Nodes that the cases are extrapolated to, if the user has described them.
    """
    rows = [row for each in series for row in _rows(each)]
    skipped = [(why, row.case.name) for row in run.cases if (why := unusable_reason(row))]
    notes = [
        *_source_notes(series, machine, probes, on),
        *_residual_notes(series),
        *_refusals(series),
        *(f"left out {join_limited(names)}: {why}." for why, names in group_pairs(skipped).items()),
    ]
    return Table("Extrapolation", _CAPTION, _FIELDS, tuple(rows), tuple(notes))


def _rows(series: ExtrapolatedSeries) -> Iterator[TableRow]:
    same = {"case": series.name, "scaling": series.scaling}
    for row in series.measured:
        yield TableRow({**same, **_measured_cells(series, row)}, series.name)
    for point in series.points:
        cells = {**same, "devices": point.case.world_size, **_predicted_cells(point)}
        yield TableRow(cells, series.name)


def _measured_cells(series: ExtrapolatedSeries, row: CaseSummary) -> dict[str, Any]:
    step, speed = row.values[STEP], row.values[THROUGHPUT]
    return {
        "devices": row.case.world_size,
        "kind": "measured",
        "step": TableCell(step.value, f"{format_duration(step.value)} measured"),
        "step_low": step.low,
        "step_high": step.high,
        THROUGHPUT: TableCell(speed.value, speed.text),
        f"{THROUGHPUT}_low": speed.bounds[0],
        f"{THROUGHPUT}_high": speed.bounds[1],
        "efficiency": TableCell(series.efficiency(row), f"{series.efficiency(row):.3f}"),
    }


def _predicted_cells(point: ExtrapolatedPoint) -> dict[str, Any]:
    speed, loss, ratio = point.tokens_per_s, point.ratio.scaling_loss, point.ratio
    missing = TableCell(None, reason="this term is 0 on the measured devices, on the others, or on both")
    return {
        "kind": "predicted",
        "step": TableCell(point.step_s.value, point.step_s.duration_text),
        "step_low": point.step_s.low,
        "step_high": point.step_s.high,
        THROUGHPUT: TableCell(speed.value, format_number(speed.value, (speed.high - speed.low) / 2)),
        f"{THROUGHPUT}_low": speed.low,
        f"{THROUGHPUT}_high": speed.high,
        "efficiency": TableCell(point.efficiency.value, _efficiency_text(point.efficiency)),
        "efficiency_low": point.efficiency.low,
        "efficiency_high": point.efficiency.high,
        "loss_term": TableCell(loss[0], f"{loss[0]} {format_percent(loss[1])}") if loss else None,
        "loss_share": loss[1] if loss else None,
        "fits": point.fits,
        "ratio": ratio.value,
        **{f"{term}_ratio": ratio.terms.get(term) or missing for term in _TERMS},
        "source": ratio.target.source,
    }


def _efficiency_text(value: PredictedValue) -> str:
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def _source_notes(
    series: Sequence[ExtrapolatedSeries], machine: Machine, probes: RunProbes, on: Machine | None
) -> Iterator[str]:
    sources = {point.ratio.target.source for each in series for point in each.points}
    if "probe" in sources:
        yield (
            "Ratios of steps are from the rates that probes measured on both numbers of devices: "
            f"{probes.used_text}."
        )
    if "data sheet" in sources:
        other = f"; measured on {_nodes_text(machine)}" if on else "; --on machine.yaml describes others"
        nodes = _nodes_text(on or machine)
        yield f"Ratios of steps are from data sheets (docs/foresight.md): {nodes}{other}."
    for name in probes.left_out:
        yield f"Probes of {name} are left out: they {probes.mismatch(name)}."


def _nodes_text(machine: Machine) -> str:
    network = machine.between or DATA_SHEETS[machine.gpu_type].network
    between = f", {format_bitrate(8 * network)} a GPU between them" if network else ""
    return f"nodes of {machine.devices_per_node} {machine.gpu_type}{between}"


def _residual_notes(series: Sequence[ExtrapolatedSeries]) -> Iterator[str]:
    for each in series:
        if found := each.residual:
            by = f"more than a factor of {MAX_INTERVAL_FACTOR}"
            if found.error is not None:
                by = f"{100 * found.error:+.1f} %"
            yield (
                f"{each.name}: the step on {found.to_devices} devices, which is measured, extrapolated from "
                f"{found.from_devices} is off by {by}."
            )


def refusals_json(series: Sequence[ExtrapolatedSeries]) -> list[dict[str, Any]]:
    """Cases and numbers of devices that are refused, with the reasons, for programs."""
    return [
        {"case": each.name, "devices": devices, "reason": why}
        for each in series
        for devices, why in each.refusals.items()
    ]


def _refusals(series: Sequence[ExtrapolatedSeries]) -> Iterator[str]:
    by_reason = group_pairs(
        ((why, each.name), count) for each in series for count, why in each.refusals.items()
    )
    alike = group_pairs(((why, tuple(counts)), name) for (why, name), counts in by_reason.items())
    for (why, counts), names in alike.items():
        yield f"{join_limited(names)}: not extrapolated to {join_words([f'{n:,}' for n in counts])}: {why}."
    if any("no probe on" in why for why, _ in alike):
        yield "distbench probe SUITE --world-sizes N,N measures the rates of both numbers, for --rates."
