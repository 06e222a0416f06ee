"""Rounds of ``tune``: which cases of a run with a probe are measured next."""

import dataclasses
import math
from pathlib import Path

import pytest

from distbench.api.tuning_rounds import TuningRounds
from distbench.core.case import Case, PluginChoice
from distbench.core.measurement import MeasureConfig
from distbench.plan import PlannedCase
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.run import Observer
from support.probes import probe_of
from support.records import case, failed, measured, run_info, stored_run, unsupported

GIB = 2**30
DDP, FSDP, ZERO = case("ddp"), case("fsdp"), case("zero2", strategy=PluginChoice("zero", {"stage": 2}))


class Notes(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def tuned(folder: Path, cases: list[Case], *records: Record) -> Run:
    """Run with *records*, whose grid has *cases*."""
    info = dataclasses.replace(run_info(*records), cases=[PlannedCase(each) for each in cases])
    return stored_run(folder, *records, cases=info.cases)


def asked(run: Run, memory: float | None = None, trials: int = 1, end: float = math.inf) -> tuple[set, str]:
    """Labels of the cases of the next round, and what is said."""
    heard = Notes()
    ids = TuningRounds(heard, end, memory, MeasureConfig(trials=trials))(run)
    known = {item.case.id: item.case.label for item in run.info().cases}
    return {known[each] for each in ids}, " ".join(heard.notes)


def test_all_are_promising_before_the_first_trial(tmp_path):
    run = tuned(tmp_path, [DDP, FSDP, ZERO], probe_of(DDP))
    assert asked(run) == ({"ddp", "fsdp", "zero2"}, "")


def test_a_case_that_is_never_recommended_leaves_out_no_other(tmp_path):
    lossy = case("ddp+powersgd2", strategy=PluginChoice("ddp", {"powersgd_rank": 2}))
    run = tuned(tmp_path, [lossy, DDP], probe_of(DDP), measured(lossy, 1e6))
    assert asked(run)[0] == {"ddp"}


def test_a_case_larger_than_the_memory_leaves_out_no_other(tmp_path):
    run = tuned(tmp_path, [DDP, FSDP], probe_of(DDP), measured(DDP, 1e6, memory_peak=15 * GIB))
    assert asked(run, memory=14 * GIB)[0] == {"fsdp"}
    chosen, said = asked(run, memory=16 * GIB)
    assert chosen == set()
    assert said == "1 case can't be the fastest by prediction: fsdp/ws2/mb4/fp32"


def test_a_case_predicted_to_be_too_large_is_not_launched(tmp_path):
    run = tuned(tmp_path, [DDP, FSDP], probe_of(DDP), measured(FSDP, 1e3))
    chosen, said = asked(run, memory=40 * 2**20)
    assert chosen == set()
    assert "1 case left out, by prediction larger than 40.0 MiB (--memory): ddp/ws2/mb4/fp32" in said


def test_the_fastest_get_the_trials_of_the_suite(tmp_path):
    run = tuned(tmp_path, [DDP, FSDP], probe_of(DDP), measured(DDP, 1e3), measured(FSDP, 0.8e3))
    assert asked(run, trials=2)[0] == {"ddp"}
    assert asked(run, trials=1)[0] == set()


def test_the_time_that_is_up_is_said(tmp_path):
    run = tuned(tmp_path, [DDP], probe_of(DDP))
    assert asked(run, end=0.0) == (
        set(),
        "the time is up (--minutes): ddp/ws2/mb4/fp32 may still be the fastest",
    )


@pytest.mark.parametrize("probes", [0, 1])
def test_failed_and_unsupported_cases_are_not_tried_again(tmp_path, probes):
    records = [failed(DDP), unsupported(ZERO), *[probe_of(DDP)] * probes]
    run = tuned(tmp_path, [DDP, ZERO, FSDP], *records)
    # without a probe nothing is predicted, so that all are measured
    assert asked(run)[0] == {"fsdp"}
