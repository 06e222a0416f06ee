"""The view ``checkpoint``: what checkpoints cost, and whether a training goes on from them as the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distbench.analysis.checkpoint import Continuation, broken, continuations
from distbench.analysis.names import short_names
from distbench.analysis.text import listed, one_line
from distbench.record import Record, Status
from distbench.report.tables import Table
from distbench.units import value_text

_SECONDS = ("checkpoint_save_s", "checkpoint_load_s", "full_save_s", "full_load_s")
_HEADINGS = ("case", "size", "save", "load", "gather", "spread", "shards", "full", "from", "to")
_CAPTION = (
    "size, save, load: of all shards, in the framework's own format; gather, spread: of the whole state, in "
    "one safetensors file; seconds, lower is better. Then how the same steps went again in a fresh engine "
    "that loaded its own shards, its own full state, that of the reference (from), and in the reference that "
    "loaded this case's (to). exact: bit for bit the training that never stopped; a number: the largest "
    "relative difference, no more than rounding; DIFFERS: not the same training."
)


def table(records: Sequence[Record]) -> Table:
    """Return the view of *records*, all of trials of checkpoints."""
    told = continuations(records)
    own = [record for record in records if record.status is Status.MEASURED and not record.round]
    own.sort(key=lambda record: (record.case.world_size, record.started))
    names = short_names([record.case for record in own])
    rows = tuple(_row(record, names[record.case_id], told) for record in own)
    notes = tuple(_notes(records, told)) if records else ("This run tried no checkpoints.",)
    return Table("checkpoint", "Checkpoints", _CAPTION, _HEADINGS, rows, notes)


def _row(record: Record, name: str, told: Sequence[Continuation]) -> tuple[str, ...]:
    mine = {each.training: each for each in told if each.case.id == record.case_id}
    # the reference has not one partner but all, each of which has a row
    partner = record.job.options.get("source_id")
    given = (each for each in told if each.training == "exchanged" and each.source == record.case.name)
    return (
        name,
        value_text(record.values.get("checkpoint_bytes"), "B"),
        *(_seconds(record.values.get(column)) for column in _SECONDS),
        *(_cell(mine.get(training)) for training in ("sharded", "full")),
        _cell(mine.get("exchanged") if partner else None),
        _cell(next(given, None) if partner else None),
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value < 100 else f"{value:,.0f}"


def _cell(each: Continuation | None) -> str:
    if each is None or each.verdict == "lacking":
        return "–"
    words = {"same": "exact", "differs": "DIFFERS"}
    return words.get(each.verdict, f"{each.apart:.0e}")


def _notes(records: Sequence[Record], told: Sequence[Continuation]) -> Iterator[str]:
    wrong = broken(records)
    yield from (f"{one_line(sentence)}." for sentence in wrong)
    tried = [each for each in told if each.verdict != "lacking"]
    if tried and not wrong:
        exact = sum(each.verdict == "same" for each in tried)
        yield (
            f"All {len(tried)} continuations are the same training: {exact} bit for bit, "
            f"{len(tried) - exact} within rounding."
        )
    if sizes := sorted({record.values["full_bytes"] for record in records if "full_bytes" in record.values}):
        least, most = (value_text(size, "B") for size in (sizes[0], sizes[-1]))
        yield f"The file of the whole state: {least if least == most else f'{least} to {most}'}."
    reasons: dict[str, list[str]] = {}
    for each in told:
        if each.verdict == "lacking":
            reasons.setdefault(each.reason, []).append(one_line(each.case.name))
    for record in records:
        if record.status is Status.UNSUPPORTED:
            reasons.setdefault(record.reason, []).append(one_line(record.case.name))
    for reason, names in reasons.items():
        yield f"Not tried: {one_line(reason)} ({listed(list(dict.fromkeys(names)))})."
