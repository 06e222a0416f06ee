"""View ``checkpoint``: cost of checkpoints, and trainings resumed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from distbench.analysis.case_names import short_names
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_value
from distbench.jobs.checkpoint.verdict import CheckpointEvidence, ResumedTraining, resumed_trainings
from distbench.record import Record, Status, records_of_kind
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells

_COLUMNS = ("checkpoint_bytes", "checkpoint_save_s", "checkpoint_load_s", "full_save_s", "full_load_s")
_EMPTY_NOTE = "This run has no checkpoint section."
_VERDICT_TEXTS = {"same": "exact", "differs": "DIFFERS"}


def _duration(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"


def _seconds(name: str, heading: str, doc: str) -> Field:
    return Field(name, heading, doc, "s", "lower", format=_duration)


def _resume_fields(name: str, heading: str, source: str) -> tuple[Field, Field]:
    distance = Field(name, heading, f"Largest relative difference after resuming from {source}.", "", "lower")
    verdict = Field(f"{name}_verdict", "", "same, rounding or differs.", type="varchar")
    return distance, verdict


class CheckpointView(View):
    """Cost of checkpoints, and comparison of resumed trainings with uninterrupted ones."""

    title: ClassVar[str] = "Checkpoints"
    order: ClassVar[int] = 130
    in_overview: ClassVar[bool] = True
    caption: ClassVar[str] = (
        "size, save, load: all shards, in the framework's own format; gather, spread: the full state, "
        "in one safetensors file; seconds, lower is better. shards, full, from, to: the same steps in "
        "a new engine after loading its own shards, its own full state, the reference's checkpoint, "
        "and this case's checkpoint in the reference. way: the shards loaded directly, without "
        "gathering the full state, or the full state. exact: bit-identical to the uninterrupted "
        "training; a number: largest relative difference, within rounding; DIFFERS: not equivalent."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE_FIELDS,
        Field("checkpoint_bytes", "size", "All shards in the framework's own format.", "B", "lower"),
        _seconds("checkpoint_save_s", "save", "Time to save all shards."),
        _seconds("checkpoint_load_s", "load", "Time to load all shards."),
        _seconds("full_save_s", "gather", "Time to gather and save the full state."),
        _seconds("full_load_s", "spread", "Time to load and distribute the full state."),
        *_resume_fields("sharded", "shards", "its own shards"),
        *_resume_fields("full", "full", "its own full state"),
        *_resume_fields("exchanged_from", "from", "the reference's checkpoint"),
        *_resume_fields("exchanged_to", "to", "its checkpoint, in the reference"),
        Field(
            "exchanged_way",
            "way",
            "From the shards directly, or from the full state.",
            type="varchar",
        ),
    )

    def table(self, run: RunAnalysis) -> Table:
        """Table with a row per case whose own checkpoint was tried."""
        records = records_of_kind(run.records, "checkpoint")
        resumed = resumed_trainings(records)
        own = [record for record in records if record.status is Status.MEASURED and not record.round]
        own.sort(key=lambda record: (record.case.world_size, record.started))
        names = short_names([record.case for record in own])
        rows = [_row(record, names[record.case_id], resumed) for record in own]
        return self.make_table(rows, [*_notes(run, records, resumed)] if records else [_EMPTY_NOTE])

    def is_requested(self, run: RunAnalysis) -> bool:
        """True if any checkpoint was tried."""
        return bool(records_of_kind(run.records, "checkpoint"))


def _row(record: Record, name: str, resumed: Sequence[ResumedTraining]) -> TableRow:
    own = {each.training: each for each in resumed if each.case.id == record.case_id}
    # the reference is exchanged not with one case but with all, each of which has a row
    partner = getattr(record.job.options, "source_id", "")
    given = (each for each in resumed if each.training == "exchanged" and each.source == record.case.name)
    taken, back = (own.get("exchanged"), next(given, None)) if partner else (None, None)
    return TableRow(
        {
            **case_cells(record.case, name),
            **{column: record.values.get(column) for column in _COLUMNS},
            **_resume_cells("sharded", own.get("sharded")),
            **_resume_cells("full", own.get("full")),
            **_resume_cells("exchanged_from", taken),
            **_resume_cells("exchanged_to", back),
            "exchanged_way": TableCell(_exchange_way(taken, back)),
        }
    )


def _exchange_way(*exchanged: ResumedTraining | None) -> str | None:
    """Ways of both directions; None: neither was tried."""
    ways = dict.fromkeys(each.way for each in exchanged if each and each.word != "lacking")
    return ", ".join(ways) or None


def _resume_cells(name: str, of: ResumedTraining | None) -> dict[str, TableCell]:
    if of is None or of.word == "lacking":
        return {name: TableCell(None, reason=of.reason if of else "")}
    shown = _VERDICT_TEXTS.get(of.word, f"{of.difference:.0e}")
    return {name: TableCell(of.difference, shown), f"{name}_verdict": TableCell(of.word)}


def _notes(run: RunAnalysis, records: Sequence[Record], resumed: Sequence[ResumedTraining]) -> Iterator[str]:
    wrong = [
        f"{row.case.name}: its checkpoints: {why}"
        for row, resumption in run.cases_with_evidence(CheckpointEvidence)
        for why in resumption.failures
    ]
    wrong += [str(each) for each in resumed if each.word == "differs"]
    yield from (f"{one_line(sentence)}." for sentence in wrong)
    tried = [each for each in resumed if each.word != "lacking"]
    if tried and not wrong:
        exact = sum(each.word == "same" for each in tried)
        yield (
            f"All {len(tried)} resumed trainings are equivalent: {exact} bit-identical, "
            f"{len(tried) - exact} within rounding."
        )
    if sizes := sorted({record.values["full_bytes"] for record in records if "full_bytes" in record.values}):
        least, most = (format_value(size, "B") for size in (sizes[0], sizes[-1]))
        yield f"Size of the file with the full state: {least if least == most else f'{least} to {most}'}."
    untried = [(each.reason, each.case.name) for each in resumed if each.word == "lacking"]
    untried += [(each.reason, each.case.name) for each in records if each.status is Status.UNSUPPORTED]
    for reason, names in group_pairs((reason, one_line(name)) for reason, name in untried).items():
        yield f"Not tried: {one_line(reason)} ({join_limited(list(dict.fromkeys(names)))})."
