"""Chapters of the page: what a collapsed one says, and what is never collapsed."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Case
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.report.html import Chapter
from distbench.report.page import chapters
from support.check_records import check_record, differing, none, reference, rounding
from support.records import COLUMNS, case, measured, run_of

SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
SINGLE, DDP, ZERO, EIGHT = case("single", 1), case("ddp"), case("zero2"), case("ddp", 8)
FOREIGN = {"unit": "", "better": "lower", "doc": "CPU time of others."}


def page(*records: Record) -> dict[str, Chapter]:
    return {chapter.id: chapter for chapter in chapters(run_of(*records))}


def watched(record: Record, degraded: str = "") -> Record:
    """*record* with the CPU time that others took."""
    values = {**record.values, "host_foreign_cpu": 0.25}
    columns = {**COLUMNS, "host_foreign_cpu": FOREIGN}
    return replace(record, columns=columns, values=values, degraded=degraded)


def reporting(of: Case, rate: float, threads: int = 1) -> Record:
    """Record of an engine with that learning rate and number of threads."""
    effective = {"optimizer": {"lr": rate}, "dtypes": {"reduce": "none"}}
    return replace(measured(of), effective=effective, environment={"threads": threads})


def working(seconds: float, round_: int) -> Record:
    """Record of a trial in which the last of eight ranks works for that time."""
    work = [1.0 + rank / 1000 for rank in range(7)] + [seconds]
    record = measured(EIGHT, round_=round_, imbalance=max(work) / statistics.median(work))
    return replace(record, samples={"work_s": [[each] for each in work]})


def falling(of: Case, last: float) -> Record:
    """Record of a training with that loss at its end."""
    losses, warmup = ([numbers] * of.world_size for numbers in ([3.0, 2.5, last], [3.5]))
    return replace(measured(of), samples={"loss": losses}, warmup_losses=warmup)


def test_each_collapsed_chapter_of_the_sample_has_its_numbers_in_a_sentence():
    collapsed = [each for each in chapters(RunAnalysis.read(Run(SAMPLE))) if each.collapsed]
    assert len(collapsed) >= 6
    assert [each.id for each in collapsed if not re.search(r"\d.*\.$", each.summary)] == []


def test_conditions_that_disturbed_nothing_are_collapsed_with_their_extent():
    chapter = page(watched(measured(DDP)), watched(measured(ZERO)))["telemetry"]
    assert chapter.collapsed
    assert chapter.summary == "0 of 2 trials disturbed, others' CPU at most 25%."


@pytest.mark.parametrize(
    ("name", "quiet", "warning"),
    [
        ("telemetry", [watched(measured(DDP))], [watched(measured(DDP), "others computed")]),
        (
            "parity",
            [reporting(DDP, 0.1), reporting(ZERO, 0.1, 2)],
            [reporting(DDP, 0.1), reporting(ZERO, 0.2)],
        ),
        ("loss", [falling(SINGLE, 2.4), falling(DDP, 2.4)], [falling(SINGLE, 2.4), falling(DDP, 9.0)]),
        ("ranks", [working(1.0, i) for i in range(10)], [working(1.5, i) for i in range(10)]),
    ],
)
def test_background_that_warns_is_not_collapsed(name: str, quiet: list[Record], warning: list[Record]):
    assert page(*quiet)[name].collapsed
    assert not page(*warning)[name].collapsed


def test_the_numbers_of_a_check_are_collapsed_only_if_every_case_is_equivalent():
    passed = [check_record(DDP, "case", {"case": rounding}), check_record(ZERO, "case", {"case": none})]
    cases = [measured(DDP), measured(ZERO), reference()]
    assert page(*cases, *passed)["equivalence"].table_collapsed
    failed = page(*cases, passed[0], differing(ZERO))["equivalence"]
    assert not failed.table_collapsed
    assert failed.has_warning
