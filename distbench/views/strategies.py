"""The view ``strategies``: what each strategy shards, moves and keeps by theory beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distbench.analysis.decision import Branch, branches, sentence
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import COMMUNICATION, CaseSummary
from distbench.analysis.text import one_line
from distbench.grouping import gathered
from distbench.report.figures import GREY, Chart, drawn, safe, scatter
from distbench.report.sheet import Cell, Field, Row, Sheet
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.strategies.cards import card_of
from distbench.strategies.description import TAKE_IT, Card, Claim
from distbench.units import bytes_text, number_text

_MIB = 2**20
_MOVED, _KEPT = "comm_bytes_theory", "memory_states_theory"
_STATES = "memory_states"


class StrategiesView(View):
    """A row for each strategy at the largest world size, a card of each, and what to take by memory."""

    title = "Which strategy, and why"
    place = 25
    caption = (
        "What each strategy shards, the payload of a rank's collectives per step and the model states that a "
        "rank keeps, beside theory with the dtypes in use; lower is better. x ddp: tokens/s relative to ddp, "
        "higher is better. The largest number of devices alone. The notes are a card for each strategy."
    )
    fields = (
        *CASE,
        Field("shards", "shards", "What is divided among ranks.", type="varchar"),
        Field(COMMUNICATION, "comm/step", "Payload of a rank's collectives per step.", "B", "lower"),
        Field(_MOVED, "theory", "The same by theory.", "B", "lower"),
        Field(_STATES, "states", "Model states on the rank with most of them.", "B", "lower"),
        Field(_KEPT, "theory", "The same by theory.", "B", "lower"),
        Field("relative", "x ddp", "Over ddp at the same world size.", "", "higher", format="{:.2f}".format),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        cards = _cards(run)
        found = branches(run.candidates)
        notes = [sentence(found, _devices(found))] if found else []
        return self.made([_row(row, card) for row, card in cards], [*notes, *_said(cards)])

    def charts(self, run: AnalysedRun) -> Iterator[Chart]:
        found = branches(run.candidates)
        if len(found) > 2:
            yield _by_memory(found)


def _cards(run: AnalysedRun) -> list[tuple[CaseSummary, Card]]:
    """The first measured case of each strategy at the largest world size, with the card of the strategy."""
    measured = [row for row in run.cases if row.measured]
    largest = max((row.case.world_size for row in measured), default=0)
    first: dict[str, tuple[CaseSummary, Card]] = {}
    for row in measured:
        card = card_of(row.case.strategy) if row.case.world_size == largest else None
        if card:
            first.setdefault(row.case.label, (row, card))
    return list(first.values())


def _row(row: CaseSummary, card: Card) -> Row:
    columns = (COMMUNICATION, _MOVED, _STATES, _KEPT)
    return Row(
        {
            **case_cells(row.case, one_line(row.case.label)),
            "shards": card.shards,
            **{column: measured_cell(row, column) for column in columns},
            "relative": Cell(row.relative, reason=row.relative_absent),
        }
    )


def _said(cards: list[tuple[CaseSummary, Card]]) -> Iterator[str]:
    """A sentence for each card, and their sources by number; strategies with the same card share it."""
    labels = gathered((card, one_line(row.case.label)) for row, card in cards)
    numbers: dict[str, int] = {}
    for card, of in labels.items():
        claims = sorted(card.claims, key=lambda claim: claim.aspect != TAKE_IT)
        yield f"{', '.join(of)}. {' '.join(_claim(claim, numbers) for claim in claims)}"
    if numbers:
        yield f"Sources: {', '.join(f'[{number}] {source}' for source, number in numbers.items())}."


def _claim(claim: Claim, numbers: dict[str, int]) -> str:
    """*claim* with the number of its source, of which new ones join *numbers*."""
    text = f"{claim.aspect.capitalize()}{'' if claim.aspect == TAKE_IT else ':'} {claim.text}"
    return f"{text} [{numbers.setdefault(claim.source, len(numbers) + 1)}]" if claim.source else text


def _devices(found: list[Branch]) -> int:
    return next(branch.pick.devices for branch in found if branch.pick)


def _by_memory(found: list[Branch]) -> Chart:
    known = [branch for branch in reversed(found) if branch.pick and branch.pick.speed]
    x = [branch.least / _MIB for branch in known]
    y = [branch.pick.speed.value for branch in known if branch.pick and branch.pick.speed]
    # the last holds for any more memory
    end = x[-1] + max(x[-1] - x[0], 1.0) / 4
    step = scatter("", [*x, end], [*y, y[-1]], "lines", line={"shape": "hv", "color": GREY, "width": 1.5})
    marks: dict[str, Any] = scatter(
        "",
        x,
        y,
        "markers+text",
        [_fact(branch) for branch in known],
        [branch.pick.id for branch in known if branch.pick],
        text=[safe(branch.pick.name) for branch in known if branch.pick],
        textposition="top center",
        cliponaxis=False,
        marker={"size": 11, "color": "#0072B2"},
    )
    return Chart(
        "strategies-by-memory",
        "What to take by the memory of a device",
        "From each mark on to the right a device has the memory for that case, which is recommended "
        "there; up is faster. Left of the first mark no measured case fits. The axes do not begin at 0.",
        drawn(
            [{**step, "hoverinfo": "skip", "showlegend": False}, {**marks, "showlegend": False}],
            "memory of a device, MiB",
            "tokens/s (higher is better)",
        ),
        finding=sentence(found, _devices(found)),
        height=360,
    )


def _fact(branch: Branch) -> str:
    assert branch.pick and branch.pick.speed
    speed = number_text(branch.pick.speed.value)
    return f"{safe(branch.pick.name)}: {speed} tokens/s from {bytes_text(branch.least)} on"
