"""The view ``memory``: what a rank keeps by kind, beside theory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from distbench.analysis.memory import KINDS, TOLERANCE, Held, held
from distbench.analysis.parity import marked_names
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed
from distbench.report.tables import Table

_UNITS = ("B", "KiB", "MiB", "GiB")
_HEADINGS = (
    "case",
    "params",
    "grads",
    "optim.",
    "master",
    "buffers",
    "activ.",
    "other",
    "peak",
    "states",
    "theory",
    "diff",
)
_CAPTION = (
    "{unit} of the rank with the largest model states, lower is better: each kind at its largest over the "
    "phases of one counted step (after forward, backward and optimizer), so not all at the same time. "
    "optim.: optimizer states. master: weights that the optimizer updates beside the parameters. buffers: "
    "buckets of communication, and shards gathered whole. activ.: what the step adds to all that. peak: "
    "most at once in the timed steps. states: the first four together, beside ZeRO's table with the "
    "dtypes in use (theory)."
)


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    measured = [row for row in cases if row.detail is not None]
    names = marked_names(measured, cases)
    found = [(names[row.case.id], row, rank) for row in measured if (rank := held(row.detail))]
    unit, size = _unit(max((rank.most("allocated") for _, _, rank in found), default=0.0))
    rows = tuple(_row(name, row, rank, size) for name, row, rank in found)
    notes = (*_differences(found, unit, size), *_host(found, unit, size), *_missing(names, measured))
    return Table("memory", "Where memory goes", _CAPTION.format(unit=unit), _HEADINGS, rows, notes)


def _row(name: str, row: CaseSummary, rank: Held, size: float) -> tuple[str, ...]:
    peak = row.values.get("memory_peak")
    difference = rank.difference
    return (
        name,
        *(_cell(rank.find(kind), size) for kind in (*KINDS, "activations", "other")),
        _cell(peak.value if peak else None, size),
        _cell(rank.find("states"), size),
        _cell(rank.theory.get("states"), size),
        "–" if difference is None else f"{difference:+.1%}",
    )


def _differences(found: Sequence[tuple[str, CaseSummary, Held]], unit: str, size: float) -> Iterator[str]:
    for name, _, rank in found:
        if rank.difference is None or abs(rank.difference) <= TOLERANCE:
            continue
        kinds = [f"{kind.replace('_', ' ')} {excess / size:+.2f} {unit}" for kind, excess in rank.excess()]
        why = rank.cause() or "no known cause"
        yield f"{name}: model states differ from theory by {rank.difference:+.1%} ({listed(kinds)}): {why}."


def _host(found: Sequence[tuple[str, CaseSummary, Held]], unit: str, size: float) -> Iterator[str]:
    for name, _, rank in found:
        if host := rank.most("host"):
            yield f"{name}: {host / size:.2f} {unit} of it stand in host memory, not on the device."
    on_cpu = [name for name, row, _ in found if row.case.device == "cpu" and "+offload" in row.case.label]
    if on_cpu:
        yield f"{listed(on_cpu)}: on a CPU what is offloaded stays where it was; offload saves nothing here."


def _missing(names: dict[str, str], rows: Sequence[CaseSummary]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for column in ("memory_states", "memory_activations", "memory_states_theory"):
            if column in row.columns and (reason := row.absent.get(column)):
                reasons.setdefault(f"No {column}: {reason}", []).append(names[row.case.id])
    for reason, of in reasons.items():
        yield f"{reason} ({listed(of)})."


def _unit(largest: float) -> tuple[str, float]:
    """Return one unit for the whole table, so that its numbers compare at a glance."""
    power = 0
    while largest >= 1024 and power < len(_UNITS) - 1:
        largest /= 1024
        power += 1
    return _UNITS[power], 1024.0**power


def _cell(value: Any, size: float) -> str:
    return "–" if value is None else f"{value / size:.2f}"
