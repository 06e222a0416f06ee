"""The view ``strategies``: what each strategy shards, moves and keeps by theory beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.analysis.case_summary import REFERENCE_LABEL, THROUGHPUT, CaseSummary
from distbench.analysis.memory_ranges import MemoryRange, memory_ranges, memory_ranges_sentence
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wire_traffic import WIRE_BYTES, WIRE_BYTES_THEORY
from distbench.core.grouping import group_pairs
from distbench.core.text import one_line
from distbench.core.units import format_bytes, format_count, format_percent
from distbench.strategies.cards import USE_IF, Card, Claim, card_for
from distbench.tables.table import Field, Table, TableRow
from distbench.views.base import CASE_FIELDS, RELATIVE_COLUMN, CaseColumn, View
from distbench.views.charts.figures import CaseStyle

_STATES, _STATES_THEORY = "memory_states", "memory_states_theory"
_MAX_CARDS = 24
_ASPECTS = {
    "moves": (WIRE_BYTES, WIRE_BYTES_THEORY, "per step"),
    "keeps": (_STATES, _STATES_THEORY, "of model states"),
}
"""Subject of a claim -> columns of its measurement and theory, and their meaning."""


@dataclass(frozen=True)
class MeasuredClaim:
    """Claim of theory with its measurement."""

    claim: Claim
    theory: str = ""
    measured: str = ""
    unit: str = ""
    """Meaning of both numbers."""


@dataclass(frozen=True)
class StrategyCard:
    """Card of a strategy for the page."""

    case_id: str
    name: str
    color: str
    is_picked: bool
    advice: Sequence[Claim]
    facts: Sequence[MeasuredClaim]
    pace: str


@dataclass(frozen=True)
class MemoryQuestion:
    """Question of the decision tree, and the case to use if the answer is yes."""

    least: str
    """Memory in the question; empty for the last answer."""
    case_id: str
    """Empty: no measured case fits."""
    name: str
    summary: str


@dataclass(frozen=True)
class StrategyCards:
    """The cards and the decision tree above them."""

    cards: Sequence[StrategyCard]
    left_out: int
    """Number of strategies without a card on the page."""
    questions: Sequence[MemoryQuestion]
    devices: str


class StrategiesView(View):
    """A row for each strategy at the largest world size, a card of each, and what to take by memory."""

    template = "strategies.html"
    title = "Which strategy, and why"
    order = 25
    compares_cases = True
    caption = (
        "State that each strategy shards, bytes that a rank sends per step (comm/step), and model "
        "states of a rank, next to theory with the dtypes in use; lower is better. x ddp: tokens/s "
        "relative to ddp, higher is better. An all-reduce sends twice as much as an all-gather of the "
        "same array; comm/step and its theory are means over ranks. Only cases on the most devices. "
        "The cards say when to use each strategy."
    )
    fields = (
        *CASE_FIELDS,
        Field("shards", "shards", "State that is divided among ranks.", type="varchar"),
        CaseColumn(WIRE_BYTES, "comm/step", "Bytes that a rank sends per step.", "B", "lower"),
        CaseColumn(WIRE_BYTES_THEORY, "theory", "The same by theory.", "B", "lower"),
        CaseColumn(_STATES, "states", "Model states on the rank with most of them.", "B", "lower"),
        CaseColumn(_STATES_THEORY, "theory", "The same by theory.", "B", "lower"),
        RELATIVE_COLUMN,
    )

    def table(self, run: RunAnalysis) -> Table:
        cards = _cards(run)
        found = memory_ranges(run.candidates)
        notes = [memory_ranges_sentence(found, _devices(found))] if found else []
        rows = [
            TableRow({**self.case_row(row, one_line(row.case.label)).cells, "shards": card.shards})
            for row, card in cards
        ]
        return self.make_table(rows, [*notes, *_card_sentences(cards)])

    def content(self, run: RunAnalysis) -> StrategyCards:
        """Cards that replace the notes on the page."""
        found, style = memory_ranges(run.candidates), CaseStyle.for_cases(run.cases)
        cards = sorted(_cards(run), key=lambda pair: -_speed(pair[0]))
        pick = next((branch.pick.id for branch in found if branch.pick), "")
        return StrategyCards(
            [_strategy_card(row, card, style, row.case.id == pick) for row, card in cards[:_MAX_CARDS]],
            len(cards[_MAX_CARDS:]),
            _questions(found),
            format_count(_devices(found), "device") if found else "",
        )


def _cards(run: RunAnalysis) -> list[tuple[CaseSummary, Card]]:
    """First measured case of each strategy at the largest world size, with the strategy's card."""
    measured = [row for row in run.cases if row.measured]
    largest = max((row.case.world_size for row in measured), default=0)
    first: dict[str, tuple[CaseSummary, Card]] = {}
    for row in measured:
        card = card_for(row.case.strategy) if row.case.world_size == largest else None
        if card:
            first.setdefault(row.case.label, (row, card))
    return list(first.values())


def _speed(row: CaseSummary) -> float:
    return row.values[THROUGHPUT].value if THROUGHPUT in row.values else 0.0


def _questions(found: Sequence[MemoryRange]) -> list[MemoryQuestion]:
    return [
        MemoryQuestion(
            format_bytes(branch.at_least) if branch.at_least else "",
            branch.pick.id if branch.pick else "",
            branch.pick.name if branch.pick else "",
            _summary(branch, found[0]),
        )
        for branch in found
    ]


def _summary(branch: MemoryRange, first: MemoryRange) -> str:
    if not (branch.pick and branch.pick.speed and first.pick and first.pick.speed):
        return "no measured case fits"
    slower = 1 - branch.pick.speed.value / first.pick.speed.value
    behind = f", {format_percent(slower)} slower" if slower >= 0.005 else ""
    return f"{branch.pick.speed.text()} tokens/s{behind}"


def _strategy_card(row: CaseSummary, card: Card, style: CaseStyle, is_picked: bool) -> StrategyCard:
    claims = [claim for claim in card.claims if claim.aspect != USE_IF]
    relative = (
        f", {row.relative_throughput:.2f} × {REFERENCE_LABEL}" if row.relative_throughput is not None else ""
    )
    return StrategyCard(
        row.case.id,
        one_line(row.case.label),
        style.marker(row.case.strategy.name)["color"],
        is_picked,
        [claim for claim in card.claims if claim.aspect == USE_IF],
        [_measured_claim(row, claim) for claim in claims],
        f"{row.values[THROUGHPUT].text} tokens/s{relative}" if _speed(row) else "",
    )


def _measured_claim(row: CaseSummary, claim: Claim) -> MeasuredClaim:
    if claim.aspect not in _ASPECTS:
        return MeasuredClaim(claim)
    measured, theory, unit = _ASPECTS[claim.aspect]
    return MeasuredClaim(claim, _bytes(row, theory), _bytes(row, measured), unit)


def _bytes(row: CaseSummary, column: str) -> str:
    return format_bytes(row.values[column].value) if column in row.values else "unknown"


def _card_sentences(cards: list[tuple[CaseSummary, Card]]) -> Iterator[str]:
    """Sentence for each card, and their sources by number; strategies with the same card share it."""
    labels = group_pairs((card, one_line(row.case.label)) for row, card in cards)
    numbers: dict[str, int] = {}
    for card, of in labels.items():
        claims = sorted(card.claims, key=lambda claim: claim.aspect != USE_IF)
        yield f"{', '.join(of)}. {' '.join(_claim(claim, numbers) for claim in claims)}"
    if numbers:
        yield f"Sources: {', '.join(f'[{number}] {source}' for source, number in numbers.items())}."


def _claim(claim: Claim, numbers: dict[str, int]) -> str:
    """*claim* with the number of its source; new sources are added to *numbers*."""
    text = f"{claim.aspect.capitalize()}{'' if claim.aspect == USE_IF else ':'} {claim.text}"
    return f"{text} [{numbers.setdefault(claim.source, len(numbers) + 1)}]" if claim.source else text


def _devices(found: list[MemoryRange]) -> int:
    return next(branch.pick.devices for branch in found if branch.pick)
