"""The view ``strategies``: what each strategy shards, moves and keeps by theory beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import COMMUNICATION, REFERENCE, THROUGHPUT, CaseSummary
from distbench.analysis.decision_tree import Branch, branches, sentence
from distbench.analysis.run import AnalysedRun
from distbench.core.grouping import gathered
from distbench.core.text import one_line
from distbench.core.units import bytes_text, count_text, percent_text
from distbench.report.figures import Style
from distbench.report.view import CASE, View, case_cells, measured_cell
from distbench.strategies.cards import card_of
from distbench.strategies.description import TAKE_IT, Card, Claim
from distbench.tables.table import Cell, Field, Row, Sheet

_MOVED, _KEPT = "comm_bytes_theory", "memory_states_theory"
_STATES = "memory_states"
_MOST_CARDS = 24
_ASPECTS = {"moves": (COMMUNICATION, _MOVED, "per step"), "keeps": (_STATES, _KEPT, "of model states")}
"""What a claim is about -> columns of what was measured and of its theory, and what they are."""


@dataclass(frozen=True)
class Fact:
    """A claim of theory, and what was measured of it."""

    claim: Claim
    theory: str = ""
    measured: str = ""
    unit: str = ""
    """What the two are."""


@dataclass(frozen=True)
class ShownCard:
    """A strategy as the page has it."""

    case_id: str
    name: str
    color: str
    is_picked: bool
    advice: Sequence[Claim]
    facts: Sequence[Fact]
    pace: str


@dataclass(frozen=True)
class Turn:
    """A question of the decision tree, and the case to use where the answer is yes."""

    least: str
    """Memory that is asked for; empty where nothing is left to ask."""
    case_id: str
    """Empty: no measured case fits."""
    name: str
    told: str


@dataclass(frozen=True)
class Content:
    """The cards, and the decision tree above them."""

    cards: Sequence[ShownCard]
    left_out: int
    """Strategies without a card on the page."""
    turns: Sequence[Turn]
    devices: str


class StrategiesView(View):
    """A row for each strategy at the largest world size, a card of each, and what to take by memory."""

    template = "strategies.html"
    title = "Which strategy, and why"
    place = 25
    caption = (
        "What each strategy shards, the payload of a rank's collectives per step and the model states that a "
        "rank keeps, beside theory with the dtypes in use; lower is better. x ddp: tokens/s relative to ddp, "
        "higher is better. comm/step, and its theory: mean over ranks. The payload of an "
        "all-reduce counts once; the cards count what goes over the wire, twice that. The largest number of "
        "devices alone. A card for each strategy says when to use it."
    )
    fields = (
        *CASE,
        Field("shards", "shards", "What is divided among ranks.", type="varchar"),
        Field(COMMUNICATION, "comm/step", "Payload per step, mean over ranks.", "B", "lower"),
        Field(_MOVED, "theory", "The same by theory, mean over ranks.", "B", "lower"),
        Field(_STATES, "states", "Model states on the rank with most of them.", "B", "lower"),
        Field(_KEPT, "theory", "The same by theory.", "B", "lower"),
        Field("relative", "x ddp", "Over ddp at the same world size.", "", "higher", format="{:.2f}".format),
    )

    def sheet(self, run: AnalysedRun) -> Sheet:
        cards = _cards(run)
        found = branches(run.candidates)
        notes = [sentence(found, _devices(found))] if found else []
        return self.made([_row(row, card) for row, card in cards], [*notes, *_said(cards)])

    def content(self, run: AnalysedRun) -> Content:
        """What the page has instead of notes."""
        found, style = branches(run.candidates), Style.of(run.cases)
        cards = sorted(_cards(run), key=lambda pair: -_speed(pair[0]))
        pick = next((branch.pick.id for branch in found if branch.pick), "")
        return Content(
            [_shown(row, card, style, row.case.id == pick) for row, card in cards[:_MOST_CARDS]],
            len(cards[_MOST_CARDS:]),
            _turns(found),
            count_text(_devices(found), "device") if found else "",
        )


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


def _speed(row: CaseSummary) -> float:
    return row.values[THROUGHPUT].value if THROUGHPUT in row.values else 0.0


def _turns(found: Sequence[Branch]) -> list[Turn]:
    return [
        Turn(
            bytes_text(branch.least) if branch.least else "",
            branch.pick.id if branch.pick else "",
            branch.pick.name if branch.pick else "",
            _told(branch, found[0]),
        )
        for branch in found
    ]


def _told(branch: Branch, first: Branch) -> str:
    if not (branch.pick and branch.pick.speed and first.pick and first.pick.speed):
        return "no measured case fits"
    slower = 1 - branch.pick.speed.value / first.pick.speed.value
    behind = f", {percent_text(slower)} slower" if slower >= 0.005 else ""
    return f"{branch.pick.speed.text()} tokens/s{behind}"


def _shown(row: CaseSummary, card: Card, style: Style, is_picked: bool) -> ShownCard:
    claims = [claim for claim in card.claims if claim.aspect != TAKE_IT]
    relative = f", {row.relative:.2f} × {REFERENCE}" if row.relative is not None else ""
    return ShownCard(
        row.case.id,
        one_line(row.case.label),
        style.marker(row.case.strategy.name)["color"],
        is_picked,
        [claim for claim in card.claims if claim.aspect == TAKE_IT],
        [_fact(row, claim) for claim in claims],
        f"{row.values[THROUGHPUT].text} tokens/s{relative}" if _speed(row) else "",
    )


def _fact(row: CaseSummary, claim: Claim) -> Fact:
    if claim.aspect not in _ASPECTS:
        return Fact(claim)
    measured, theory, unit = _ASPECTS[claim.aspect]
    return Fact(claim, _bytes(row, theory), _bytes(row, measured), unit)


def _bytes(row: CaseSummary, column: str) -> str:
    return bytes_text(row.values[column].value) if column in row.values else "not known"


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
