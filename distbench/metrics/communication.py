"""``communication``: which collectives a step asks for, and how many bytes, beside the textbook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from distbench.case import BYTES
from distbench.metrics.base import Absent, Column, Metric, Pass, Session, Values

if TYPE_CHECKING:
    from distbench.metrics._collectives import Collectives


@dataclass
class _State:
    collectives: Collectives
    standing: list[int] = field(default_factory=list)
    """Elements that stood whole where a pass over the layers began, added up over each step."""


@dataclass(frozen=True)
class Communication(Metric):
    """Calls and bytes of every collective of a step, as asked for by the strategy."""

    passes: ClassVar[frozenset[Pass]] = frozenset({"count"})
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "comm_calls",
            "",
            "lower",
            "max",
            "Collectives that a rank takes part in during one step (groups of one rank not counted).",
            per_step=True,
        ),
        Column(
            "comm_bytes",
            "B",
            "lower",
            "max",
            "Payload of a rank's collectives in one step, as asked for: the full array of each, as "
            "nccl-tests counts (all-gather: what comes out; reduce-scatter: what goes in).",
            per_step=True,
        ),
        Column(
            "comm_bytes_theory",
            "B",
            None,
            "first",
            "What the textbook of the strategy says for comm_bytes, in the dtypes in use, every micro-batch "
            "counted: DDP an all-reduce of the gradients; FSDP and ZeRO-3 two all-gathers of the "
            "parameters and a reduce-scatter; ZeRO-1 and 2 a reduce-scatter and an all-gather.",
        ),
        Column(
            "comm_standing_bytes",
            "B",
            None,
            "max",
            "Bytes of sharded parameters that stood whole when a forward or backward pass began, so that "
            "the pass need not gather them.",
            per_step=True,
        ),
    )

    def start(self, session: Session) -> Any:
        from distbench.metrics._collectives import Collectives

        return _State(Collectives())

    def before_step(self, session: Session, state: _State) -> None:
        state.standing.append(0)
        state.collectives.begin()

    def after_step(self, session: Session, state: _State) -> None:
        state.collectives.end()

    @contextmanager
    def around(self, session: Session, state: _State, span: str) -> Iterator[None]:
        if span in ("forward", "backward"):
            state.standing[-1] += session.engine.standing_whole()
        yield

    def values(self, session: Session, state: _State) -> Values:
        steps = state.collectives.steps
        # groups of one rank move nothing
        moving = [[call for call in step if call.group_size > 1] for step in steps]
        calls = session.kept["collectives"] = steps[-1] if steps else []
        rows = [call.row(0, place) for place, call in enumerate(calls)]
        session.tables["collectives"] = session.kept["collective_rows"] = rows
        size = BYTES[session.case.precision.compute]
        return {
            "comm_calls": [float(len(calls)) for calls in moving],
            "comm_bytes": [float(sum(call.bytes for call in calls)) for calls in moving],
            "comm_standing_bytes": [float(elements * size) for elements in state.standing],
            "comm_bytes_theory": _theory(session),
        }


def _theory(session: Session) -> list[float | None] | Absent:
    theory = session.strategy.collectives(session.case, session.effective["parameters"])
    if theory is None:
        return Absent(f"{session.case.strategy.name} tells no theory of its communication")
    if session.rank == 0:
        session.tables["collectives_theory"] = [{"op": op, "bytes": size} for op, size in theory.items()]
    return [float(sum(theory.values()))]
