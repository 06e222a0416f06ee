"""Table of layers, and the time of each in the profiled steps: by marks of modules and nodes of autograd."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench.core.columns import TableColumn, TableSpec
from distbench.core.grouping import group_pairs
from distbench.traces.intervals import TimeInterval, difference, intersection, length, union
from distbench.traces.trace import Trace

if TYPE_CHECKING:
    from distbench.metrics.profile.layers import CountedLayers, Layer

_SECONDS = (
    "Time in which its operations ran in a profiled step (on a GPU: kernels and copies that it launched)"
)
_BYTES = "Bytes of the tensors that its operations read and write in a step"

TABLE = TableSpec(
    "layers",
    "Layers of the model by time, FLOPs and bytes; modules whose names differ only in numbers are one "
    "layer. An operation belongs to the innermost module that runs it. From all ranks, if there are at most "
    "eight, else from rank 0.",
    (
        TableColumn(
            "layer",
            "varchar",
            "Name of the modules, * for numbers; model: the outermost; null: operations outside of modules, "
            "such as the loss and what accumulates gradients.",
        ),
        TableColumn("kind", "varchar", "Class of the modules."),
        TableColumn("modules", "bigint", "Number of modules."),
        TableColumn("forward_s", "double", f"{_SECONDS}, forward pass; null: no step was profiled.", "s"),
        TableColumn("backward_s", "double", f"{_SECONDS}, backward pass with recomputation.", "s"),
        TableColumn("forward_flops", "double", "FLOPs of the forward pass of a step, by torch's formulas."),
        TableColumn("backward_flops", "double", "FLOPs of the backward pass, with recomputation."),
        TableColumn("forward_bytes", "double", f"{_BYTES}, forward pass: no fusion, no cache.", "B"),
        TableColumn("backward_bytes", "double", f"{_BYTES}, backward pass with recomputation.", "B"),
    ),
)
_OUTSIDE = ("", "")
"""Name and class of the layer of operations that belong to none."""
MOST_RANKS = 8
"""World size up to which all ranks write their layers."""


@dataclass(frozen=True)
class Owner:
    """Layer (None: none) and pass that an operation belongs to."""

    layer: int | None
    in_backward: bool


@dataclass(frozen=True)
class _Span:
    interval: TimeInterval
    layer: int | None
    is_backward: bool = False


def layer_seconds(
    trace: Trace, steps: Sequence[TimeInterval], layer_of_node: Callable[[int], int | None]
) -> dict[Owner, float]:
    """Seconds per step of each layer and pass, mean over *steps*; on a CPU they add up to both passes."""
    spans = [_Span(interval, None) for interval in trace.marks.get("forward", [])]
    spans += [_Span(interval, None, is_backward=True) for interval in trace.marks.get("backward", [])]
    spans += [_Span(interval, layer) for layer, interval in trace.layers]
    for node in trace.backward_nodes:
        layer = None if node.sequence is None else layer_of_node(node.sequence)
        spans.append(_Span(node.interval, layer, is_backward=True))
    owned = group_pairs(innermost(spans))
    # an optimizer may update inside the backward pass
    passes = difference(list(steps), union(trace.marks.get("optimizer", [])))
    within = {owner: intersection(union(parts), passes) for owner, parts in owned.items()}
    run = _device_seconds if trace.is_on_device else _host_seconds
    return {owner: seconds / len(steps) for owner, seconds in run(trace, within).items() if seconds}


def layer_rows(
    counted: CountedLayers | None, layers: Sequence[Layer], seconds: Mapping[Owner, float] | None
) -> list[dict[str, Any]]:
    """Rows of the table ``layers``.

    Args:
        counted: FLOPs and bytes; None: unknown.
        layers: Layers that ran in the profiled steps, by the index of an owner.
        seconds: Seconds of each owner; None: no step was profiled.
    """
    names = [(layer.name, layer.kind) for layer in layers]
    timed = {
        (_OUTSIDE if owner.layer is None else names[owner.layer], owner.in_backward): of
        for owner, of in (seconds or {}).items()
    }
    costs = counted.layers if counted else {}
    modules = {(layer.name, layer.kind): len(layer.modules) for layer in (*costs.values(), *layers)}
    rows = []
    for key in dict.fromkeys((*names, *costs, _OUTSIDE)):
        numbers: dict[str, float | None] = {}
        for part, in_backward in (("forward", False), ("backward", True)):
            if seconds is not None:
                numbers[f"{part}_s"] = timed.get((key, in_backward), 0.0)
            if key in costs:
                cost = costs[key].backward if in_backward else costs[key].forward
                numbers |= {f"{part}_flops": cost.flops, f"{part}_bytes": cost.bytes}
        if any(numbers.values()):
            name, kind = key
            rows.append(
                {"layer": name or None, "kind": kind or None, "modules": modules.get(key) or None, **numbers}
            )
    return rows


def innermost(spans: Iterable[_Span]) -> Iterator[tuple[Owner, TimeInterval]]:
    """Yield disjoint intervals with the owner of the innermost of *spans* that covers them."""
    open_spans: list[_Span] = []
    at = 0.0
    for span in sorted(spans, key=lambda each: (each.interval[0], -each.interval[1])):
        while open_spans and (end := open_spans[-1].interval[1]) <= span.interval[0]:
            if end > at:
                yield _owner(open_spans), (at, end)
                at = end
            open_spans.pop()
        if open_spans and span.interval[0] > at:
            yield _owner(open_spans), (at, span.interval[0])
        at = max(at, span.interval[0])
        open_spans.append(span)
    while open_spans:
        if (end := open_spans[-1].interval[1]) > at:
            yield _owner(open_spans), (at, end)
            at = end
        open_spans.pop()


def _owner(open_spans: Sequence[_Span]) -> Owner:
    # what is recomputed runs inside of a backward pass
    return Owner(open_spans[-1].layer, any(span.is_backward for span in open_spans))


def _host_seconds(trace: Trace, owned: dict[Owner, list[TimeInterval]]) -> dict[Owner, float]:
    busy = trace.compute_intervals
    return {owner: length(intersection(busy, parts)) for owner, parts in owned.items()}


def _device_seconds(trace: Trace, owned: dict[Owner, list[TimeInterval]]) -> dict[Owner, float]:
    parts = sorted((part, owner) for owner, of in owned.items() for part in of)
    begins = [part[0] for part, _ in parts]
    seconds = dict.fromkeys(owned, 0.0)
    for event in (*trace.kernels, *trace.copies):
        launched = event.begin if event.launched is None else event.launched
        place = bisect_right(begins, launched) - 1
        if place >= 0 and launched < parts[place][0][1]:
            seconds[parts[place][1]] += event.end - event.begin
    return seconds
