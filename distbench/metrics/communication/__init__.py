"""``communication``: which collectives a step issues, and how many bytes, compared with theory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.meshes import MeshShape
from distbench.engines.base import engine_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, Values, partial_training_reason
from distbench.metrics.communication.traffic import (
    LINK_SCOPES,
    CollectiveCall,
    CountedCollectives,
    LinkScope,
    scope_problem,
)
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.theory.expected_traffic import loss_count_traffic, traffic_as_built

if TYPE_CHECKING:
    from distbench.metrics.communication.collectives import CollectiveRecorder


_COLLECTIVES_TABLE = TableSpec(
    "collectives",
    "One row per collective, rank and profiled (or else counted) step: the operation as called, as "
    "executed, and its time.",
    (
        TableColumn("step", "bigint", "Which of these steps, from 0 on."),
        TableColumn("place", "bigint", "Place in the step, from 0 on, in the order of the calls."),
        TableColumn("op", "varchar", "Operation that the strategy calls."),
        TableColumn(
            "ran", "varchar", "Operation that the backend executed; null if the trace does not show it."
        ),
        TableColumn(
            "group",
            "varchar",
            "Global ranks of its process group; of a send or recv, both ends. A word of SQL: write it in "
            "quotes.",
        ),
        TableColumn("group_size", "bigint", "Ranks of that group."),
        TableColumn(
            "dimension",
            "varchar",
            "Dimension of the device mesh of the group, such as tp; null: unknown.",
        ),
        TableColumn(
            "meetings",
            "bigint",
            "1 if the rank multiplied matrices since the collective before it, or if it is the first of the "
            "step; 0: it follows another one, and ranks wait for each other once for both.",
        ),
        TableColumn("nodes", "bigint", "Nodes that these ranks are on; 1: it stays inside a node."),
        TableColumn("dtype", "varchar", "Dtype of what it moves."),
        TableColumn("bytes", "bigint", "Payload by nccl-tests' convention: the full array.", "B"),
        TableColumn("wire_bytes", "double", "Bytes that the rank sends, by the executed algorithm.", "B"),
        TableColumn("seconds", "double", "Time that the rank spent in it, under the profiler.", "s"),
        TableColumn(
            "transfer_s",
            "double",
            "Shortest time that a rank of the group spent in it; for a message inside a node, at most "
            "the time from the arrival of both ends until it was received.",
            "s",
        ),
        TableColumn("wait_s", "double", "The rest: waiting for the slowest rank.", "s"),
        TableColumn("exposed_s", "double", "Exposed time: not hidden by computation of the rank.", "s"),
    ),
)
_THEORY_TABLE = TableSpec(
    "collectives_theory",
    (
        "Expected bytes of a rank's collectives per step, one row per operation and dimension of the "
        "device mesh."
    ),
    (
        TableColumn("op", "varchar", "Operation."),
        TableColumn("dimension", "varchar", "Dimension of the device mesh; null: not given by theory."),
        TableColumn("calls", "double", "Number of calls; null: not given by theory."),
        TableColumn(
            "meetings",
            "double",
            "Number of those calls before which the rank has multiplied matrices since the collective "
            "before; null: not given by theory.",
        ),
        TableColumn(
            "issued_as",
            "varchar",
            "Operation that the engine calls in its place; null: the same one.",
        ),
        TableColumn(
            "standing",
            "double",
            "Bytes that passes need and that stay gathered from the one before; null: not given by theory.",
            "B",
        ),
        TableColumn("bytes", "double", "Payload by the strategy's communication model.", "B"),
    ),
)

_THEORY_COLUMNS = {"synchronizations": "meetings", "still_gathered_bytes": "standing"}
"""Columns that have other names than the fields of ``ExpectedCollective``."""


@dataclass
class _State:
    collectives: CollectiveRecorder
    gathered_elements: list[int] = field(default_factory=list)
    """Elements of gathered parameters at the start of each pass over the layers, summed per step."""


@dataclass(frozen=True)
class Communication(Metric):
    """Calls and bytes of every collective of a step, as issued by the strategy."""

    tables = (_COLLECTIVES_TABLE, _THEORY_TABLE)
    early_imports = ("distbench.metrics.communication.collectives",)
    passes = frozenset({"count"})
    columns = (
        *columns_of("", "lower", "max", per_step=True)(
            comm_calls="Collectives that a rank takes part in during one step (groups of one rank not "
            "counted).",
        ),
        # tokens routed to a rank and activations between stages are uneven over ranks; their sum is not
        *columns_of("B", "lower", "mean", per_step=True)(
            comm_bytes="Payload of a rank's collectives in one step: the full array of each, as in "
            "nccl-tests (all-gather: the output; reduce-scatter: the input); mean over ranks, as in "
            "theory.",
            comm_inside_bytes="The part of a rank's comm_bytes whose process groups are inside one node.",
            comm_between_bytes="The part of a rank's comm_bytes whose process groups span several nodes, "
            "those with other ranks of the same node included.",
        ),
        *columns_of("B", None, "first")(
            comm_bytes_theory="Expected comm_bytes by the strategy's communication model, with the dtypes "
            "in use and all micro-batches.",
        ),
        *columns_of("B", None, "max", per_step=True)(
            comm_standing_bytes="Bytes of sharded parameters that were still gathered when a forward or "
            "backward pass started, so that the pass does not gather them.",
        ),
    )

    def start(self, context: PassContext) -> Any:
        from distbench.metrics.communication.collectives import CollectiveRecorder

        mesh = MeshShape(context.strategy.mesh_sizes(context.case.world_size))
        return _State(CollectiveRecorder(context.nodes, mesh))

    def before_step(self, context: PassContext, state: _State) -> None:
        state.gathered_elements.append(0)
        state.collectives.begin()

    def after_step(self, context: PassContext, state: _State) -> None:
        state.collectives.end()

    @contextmanager
    def around(self, context: PassContext, state: _State, span: str) -> Iterator[None]:
        if span in ("forward", "backward"):
            state.gathered_elements[-1] += context.engine.unsharded_elements()
        yield

    def values(self, context: PassContext, state: _State) -> Values:
        if unseen := context.unseen_communication:
            raise unseen
        if context.devices_per_rank > 1:
            raise NotAvailable(
                f"copies of one process between its {context.devices_per_rank} devices are not collectives"
            )
        steps = state.collectives.steps
        # groups of one rank move nothing
        moving = [[call for call in step if call.group_size > 1] for step in steps]
        rows = [call.row(number, i) for number, step in enumerate(steps) for i, call in enumerate(step)]
        counted = CountedCollectives(steps, rows)
        context.share(counted)
        context.tables["collectives"] = counted.rows
        size = DTYPE_BYTES[context.case.precision.compute]
        return {
            "comm_calls": [float(len(calls)) for calls in moving],
            "comm_bytes": [float(sum(call.bytes for call in calls)) for calls in moving],
            "comm_standing_bytes": [float(elements * size) for elements in state.gathered_elements],
            "comm_bytes_theory": _theory(context),
            **{f"comm_{where}_bytes": _bytes_in_scope(context, moving, where) for where in LINK_SCOPES},
        }


def _bytes_in_scope(
    context: PassContext, steps: list[list[CollectiveCall]], where: LinkScope
) -> list[float | None] | NotAvailable:
    """Bytes per step in the scope *where*."""
    return scope_problem(where, context.nodes) or [
        float(sum(call.bytes for call in step if call.scope == where)) for step in steps
    ]


def _theory(context: PassContext) -> list[float | None] | NotAvailable:
    theory = traffic_as_built(context.strategy, context.case, context.effective)
    if theory is None:
        none = NotAvailable(f"{context.case.strategy.name} has no communication model")
        return partial_training_reason(context.effective) or none
    theory = [*theory, *engine_of(context.case).additional_traffic(context.case, context.strategy)]
    if "loss_mean" in context.effective:
        theory = [*theory, *loss_count_traffic(context.strategy, context.case.world_size)]
    if context.rank == 0:
        context.tables["collectives_theory"] = [_theory_row(each) for each in theory]
    return [float(sum(each.bytes for each in theory))]


def _theory_row(expected: ExpectedCollective) -> dict[str, Any]:
    """Row of *expected*, under the column names of stored runs."""
    return {_THEORY_COLUMNS.get(name, name): value for name, value in asdict(expected).items()}
