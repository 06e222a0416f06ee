"""Chart of a rank's memory at the phases of one step: bars by kind with the peak of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distbench.analysis.memory import RankMemory
from distbench.core.units import format_bytes
from distbench.views.charts import palette
from distbench.views.charts.figures import GREY, escape_label
from distbench.views.charts.pairs import PairCase

_MIB = 2**20
_MAX_MICRO_BATCHES = 4
_MAX_TIMES = 4
"""A limit above this multiple of the highest peak would leave no space for the bars, and is not drawn."""

Phase = Mapping[str, Any]


def memory_case(
    case_id: str, name: str, rank: RankMemory, kinds: Mapping[str, str], limit: float | None
) -> PairCase | None:
    """Chart of one case; None if the allocator did not report the peak of each phase.

    Args:
        case_id: Id of the case.
        name: Name of the case.
        rank: The rank with the largest model states.
        kinds: Kind of memory -> label in the legend.
        limit: Memory of the device in bytes, if known.
    """
    phases = _shown(rank.phases)
    if not phases or any(not isinstance(each.get("peak"), int | float) for each in phases):
        return None
    traces = [_bars(phases, kind, label) for kind, label in kinds.items()]
    traces.append(_peaks(phases))
    highest = max(each["peak"] for each in phases)
    if limit is not None and limit <= _MAX_TIMES * highest:
        traces.append(_limit(limit, len(phases)))
    return PairCase(case_id, name, [trace for trace in traces if any(trace["x"])], [*_names(phases)])


def _shown(phases: Sequence[Phase]) -> list[Phase]:
    """Phases of the first micro-batches and of the last: all are alike."""
    numbers = list(dict.fromkeys(each.get("micro_batch") for each in phases))
    kept = {*numbers[: _MAX_MICRO_BATCHES - 1], *numbers[-1:]}
    return [each for each in phases if each.get("micro_batch") in kept]


def _names(phases: Sequence[Phase]) -> Iterator[str]:
    several = len({each.get("micro_batch") for each in phases}) > 1
    for each in phases:
        is_last = each["phase"] == "step"
        number = f" {int(each.get('micro_batch') or 0) + 1}" if several and not is_last else ""
        yield "optimizer" if is_last else f"{each['phase']}{number}"


def _bars(phases: Sequence[Phase], kind: str, label: str) -> dict[str, Any]:
    sizes = [float(each.get(kind) or 0.0) for each in phases]
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape_label(label),
        "y": [*range(len(phases))],
        "x": [size / _MIB for size in sizes],
        "marker": {"color": palette.MEMORY[kind]},
        "hovertemplate": f"{escape_label(label)}: %{{x:.4g}} MiB<extra></extra>",
    }


def _peaks(phases: Sequence[Phase]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "peak during the phase",
        "y": [*range(len(phases))],
        "x": [each["peak"] / _MIB for each in phases],
        "marker": {"symbol": "circle-open", "size": 9, "line": {"width": 2}, "color": GREY},
        "hovertemplate": "peak during the phase: %{x:.4g} MiB<extra></extra>",
    }


def _limit(limit: float, rows: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"memory of the device: {format_bytes(limit)}",
        "y": [-0.5, rows - 0.5],
        "x": [limit / _MIB] * 2,
        "line": {"color": GREY, "width": 3},
        "hoverinfo": "name",
    }
