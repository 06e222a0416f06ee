"""Runs over time: a point a run, breaks where the environment changed, steps between them."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from distbench.analysis.cumulative_change import CumulativeChange, cumulative_change
from distbench.analysis.history import CaseHistory, HistoryRun, available_metrics, case_histories
from distbench.analysis.run import RunAnalysis
from distbench.cli import main
from distbench.core.case import Batch
from distbench.record import FORMAT_VERSION
from distbench.report.history import MetricHistory, history_json, history_table
from support.records import case, failed, measured, stored_run
from support.run_histories import DDP, NEW, OLD, days, occasion, run_info, stored

SLOWER = [1000.0, 1004.0, 996.0] * 4 + [900.0, 904.0, 896.0] * 2
FSDP = case("fsdp")


def single_series(occasions: list[HistoryRun], metric: str = "tokens_per_s") -> CaseHistory:
    (series,) = case_histories(occasions, metric)
    return series


def history_document(occasions: list[HistoryRun], metric: str = "tokens_per_s") -> str:
    return " ".join(history_table(MetricHistory.of(occasions, metric, 0.03)).to_text(100).split())


def test_a_run_is_one_point_the_median_over_its_trials():
    trials = [measured(DDP, speed, round_=i) for i, speed in enumerate((990.0, 1000.0, 1300.0))]
    (point,) = single_series([occasion(0, *trials)]).points
    assert (point.value.value, point.value.low, point.value.high, point.value.trial_count) == (
        1000,
        990,
        1300,
        3,
    )


def first_direction(series: CaseHistory) -> str:
    return series.direction(series.shifts[0])


def test_a_step_is_told_with_its_size_its_direction_and_the_run_it_began_at():
    series = single_series(days(SLOWER))
    (change,) = series.shifts
    assert (change.place, series.direction(change)) == (12, "worse")
    assert (
        "tokens_per_s -10.0%, worse, from 1,000 tokens/s to 900 tokens/s from run day012 (2026-01-13) on"
        in (history_document(days(SLOWER)))
    )
    assert first_direction(single_series(days([1e6 / speed for speed in SLOWER]))) == "better"


def test_of_memory_less_is_better_and_a_column_without_direction_only_changes():
    grown = [occasion(i, measured(DDP, memory_peak=1e6 if i < 6 else 2e6)) for i in range(12)]
    assert first_direction(single_series(grown, "memory_peak")) == "worse"
    other = [occasion(i, measured(DDP, loss=1.0 if i < 6 else 2.0)) for i in range(12)]
    assert first_direction(single_series(other, "loss")) == "other"


def test_runs_are_ordered_by_when_they_were_made():
    backwards = days(SLOWER)[::-1]
    assert [point.run_id for point in single_series(backwards).points[:2]] == ["day000", "day001"]


def with_other_version(speeds: list[float], place: int) -> list[HistoryRun]:
    made = [replace(measured(DDP, v), environment=OLD if i < place else NEW) for i, v in enumerate(speeds)]
    return [occasion(i, record) for i, record in enumerate(made)]


def test_what_comes_with_another_environment_is_told_at_the_break_and_is_no_step():
    series = single_series(with_other_version(SLOWER, 12))
    assert series.shifts == ()
    (found,) = series.environment_changes
    assert (found.place, found.facts) == (12, ("packages.torch = 2.13.0, was 2.12.1",))
    assert found.shift is not None
    assert series.direction(found.shift) == "worse"
    text = history_document(with_other_version(SLOWER, 12))
    assert "Environment changed before run day012 (2026-01-13): packages.torch = 2.13.0, was 2.12.1." in text
    assert "With it: ddp -10.0% (worse)." in text


def test_a_break_without_a_change_and_one_with_too_few_runs_say_so():
    steady = [1000.0, 1004.0, 996.0] * 4
    assert "With it: ddp no measurable change." in history_document(with_other_version(steady, 6))
    assert "With it: ddp unknown, too few runs on one side." in history_document(
        with_other_version(steady, 10)
    )


def test_a_step_beside_a_break_is_found_in_its_own_environment():
    series = single_series(with_other_version([1000.0, 1004.0, 996.0, *SLOWER], 3))
    assert [change.place for change in series.shifts] == [15]
    assert [(level.start, level.end) for level in series.segments] == [(0, 3), (3, 15), (15, 21)]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"gpu_driver": "570"}, {"gpu_driver": "580"}, ("gpu_driver = 580, was 570",)),
        (
            {"variables": {}},
            {"variables": {"NCCL_ALGO": "Ring"}},
            ("variables.NCCL_ALGO = Ring, was not recorded",),
        ),
        ({"nccl": "2.27", "process_threads": 3}, {"nccl": "2.27", "process_threads": 9}, ()),
        # an older record whose ranks told nothing: the machine that started them knows less
        ({}, {"cpu": "x", "nccl": "2.27"}, ()),
    ],
)
def test_what_is_a_break(before, after, told):
    made = [occasion(i, replace(measured(DDP), environment=each)) for i, each in enumerate((before, after))]
    assert [each.facts for each in single_series(made).environment_changes] == ([told] if told else [])


def test_another_version_of_distbench_and_other_work_of_the_engine_are_breaks():
    first = occasion(0, replace(measured(DDP), effective={"clip_grad_norm": 1.0}))
    second = occasion(1, replace(measured(DDP), effective={"clip_grad_norm": None}), version="9")
    (found,) = single_series([first, second]).environment_changes
    assert found.facts == (
        "distbench = 9, was 0.1.0",
        "different work: clip_grad_norm = none, was 1.0: different gradient clipping",
    )


def test_a_case_that_was_asked_to_do_other_work_is_another_series_and_has_its_own_name():
    larger = replace(DDP, batch=Batch(16, 8, 1))
    made = MetricHistory.of([occasion(0, measured(DDP)), occasion(1, measured(larger))], "tokens_per_s", 0.03)
    assert len(made.histories) == len(set(made.names.values())) == 2


def test_a_run_whose_number_does_not_count_is_left_out_with_the_reason():
    made = [
        *days([1000.0, 1001.0]),
        occasion(2, replace(measured(DDP), degraded="others computed")),
        occasion(3, failed(DDP)),
        occasion(4, replace(measured(DDP), values={}, absent={"tokens_per_s": "no tokens"})),
        occasion(5, measured(DDP, float("nan"))),
    ]
    assert [why for _, why in single_series(made).skipped_runs] == [
        "noisy machine: others computed",
        "crashed: rank 1 in time: RuntimeError: no",
        "no tokens",
        "not a finite number",
    ]
    assert len(single_series(made).points) == 2
    assert "Not counted: no tokens (ddp in day004)." in history_document(made)


def test_noise_leaves_out_times_and_not_memory():
    noisy = replace(measured(DDP, 500.0, memory_peak=2e6), degraded="others computed")
    made = [*days([1000.0, 1001.0]), occasion(2, noisy)]
    assert len(single_series(made).points) == 2
    series = single_series(made, "memory_peak")
    assert ([point.value.value for point in series.points][-1], series.skipped_runs) == (2e6, ())


def test_one_point_and_points_all_the_same_have_a_table():
    assert "1 case in 1 run, 2026-01-01 to 2026-01-01: 0 with a significant level shift" in history_document(
        days([1000.0])
    )
    assert "1 case with too few runs; 6 in" in history_document(days([1000.0] * 5))
    assert "yet" not in history_document(days([1000.0] * 6))
    assert single_series(days([1000.0] * 9)).shifts == ()


def test_efficiency_is_of_the_same_run_and_only_where_there_is_one_device():
    def day(number: int, slow: float) -> HistoryRun:
        one = measured(case("ddp", 1), 100)
        return occasion(number, one, measured(DDP, 180 * slow), measured(FSDP, 100))

    made = [day(i, 1.0 if i < 6 else 0.8) for i in range(12)]
    series = single_series(made, "efficiency")
    assert (series.case.name, series.values[0], first_direction(series)) == (DDP.name, 0.9, "worse")
    assert "efficiency" in available_metrics(made)
    assert "efficiency" not in available_metrics(days([1000.0]))


def test_an_efficiency_is_of_the_medians_with_the_range_of_the_trials():
    """As every other point of a history: what other cases of its run did must not move it."""
    one, both = case("ddp", 1), (180.0, 190.0, 171.0)
    alone = [measured(one, speed, round_=i) for i, speed in enumerate((100.0, 104.0, 96.0))]
    together = [measured(DDP, speed, round_=i) for i, speed in enumerate(both)]
    (point,) = single_series([occasion(0, *alone, *together)], "efficiency").points
    assert (point.value.value, point.value.low, point.value.high) == (0.9, 171 / 208, 190 / 192)


CREEPING = [1000 * 0.98 ** (day // 3) * (1 + 0.004 * (-1) ** day) for day in range(33)]


def in_all(occasions: list[HistoryRun], day: int, least: float = 0.03) -> CumulativeChange | None:
    return cumulative_change(single_series(occasions), run_start(day), least)


def run_start(day: int) -> datetime:
    return datetime.fromisoformat(run_info(day, DDP).created)


def test_losses_that_creep_are_no_step_and_add_up_since_an_older_run():
    assert single_series(days(CREEPING)).shifts == ()
    found = in_all(days(CREEPING), 0)
    assert found is not None
    assert found.change is not None
    assert (found.place, single_series(days(CREEPING)).direction(found.change)) == (0, "worse")
    assert found.change.effect == pytest.approx(0.98**10 - 1, abs=0.03)
    later = in_all(days(CREEPING), 15)
    assert later is not None
    assert later.change is not None
    assert later.change.effect == pytest.approx(0.98**5 - 1, abs=0.03)


def test_since_a_run_before_a_step_the_levels_count():
    found = in_all(days(SLOWER), 2)
    assert found is not None
    assert found.change is not None
    assert found.change.effect == pytest.approx(-0.1, abs=1e-3)
    after = in_all(days(SLOWER), 12)
    assert after is not None
    assert (after.change, after.is_testable) == (None, True)


def test_what_adds_up_does_so_in_one_environment():
    found = in_all(with_other_version(SLOWER, 12), 0)
    assert found is not None
    assert (found.place, found.change, found.is_testable) == (12, None, True)
    short = in_all(days([1000.0, 900.0, 800.0]), 0)
    assert short is not None
    assert not short.is_testable
    assert in_all(days([1000.0]), 1) is None


def test_what_adds_up_is_told_in_text_and_json():
    both = [
        occasion(day, measured(DDP, speed), measured(FSDP, 1000 * (1 + 0.004 * (-1) ** day)))
        for day, speed in enumerate(CREEPING)
    ]
    made = MetricHistory.of(both, "tokens_per_s", 0.03, run_start(0))
    text = " ".join(history_table(made).to_text(100).split())
    assert re.search(
        r"ddp: tokens_per_s -1\d\.\d%, worse, from .* in total since run day000 \(2026-01-01\), 33", text
    )
    assert "No measurable change in total since 2026-01-01: fsdp." in text
    first, second = json.loads(json.dumps(history_json(made), allow_nan=False))["series"]
    assert (first["since"]["run_id"], first["since"]["change"]["word"]) == ("day000", "worse")
    assert (second["since"]["change"], second["since"]["known"]) == (None, True)
    plain = history_json(MetricHistory.of(both, "tokens_per_s", 0.03))
    assert plain["series"][0]["since"] is None


def test_json_holds_what_is_told_and_is_valid():
    grown = [occasion(i, measured(DDP, comm_bytes=0.0 if i < 6 else 8.0)) for i in range(12)]
    told = json.loads(json.dumps(history_json(MetricHistory.of(grown, "comm_bytes", 0.03)), allow_nan=False))
    (series,) = told["series"]
    assert series["steps"][0] == {
        "place": 6,
        "run_id": "day006",
        "before": 0.0,
        "after": 8.0,
        "effect": None,
        "split": None,
        "chance": pytest.approx(0, abs=1e-9),
        "word": "worse",
    }
    assert [point["value"] for point in series["points"]] == [0.0] * 6 + [8.0] * 6


@pytest.fixture
def bucket(tmp_path) -> Path:
    """Runs at several depths: ten nights, and the gate of one day."""
    for day, speed in enumerate([1000.0] * 6 + [800.0] * 4):
        stored(tmp_path / f"nightly/{day}/suite-{day}", day, measured(DDP, speed), measured(FSDP, 500))
    stored(tmp_path / "gate-20260111/candidate", 10, measured(DDP, 800.0))
    stored(tmp_path / "gate-20260111/baseline", 11, measured(DDP, 1000.0))
    return tmp_path


def history_text(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["history", *arguments, "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    return {series["case"]: series for series in made["series"]}


def test_all_runs_below_the_folders_count_and_of_a_gate_the_candidate(bucket, capsys):
    found = history_text(capsys, str(bucket))
    assert len(found[DDP.name]["points"]) == 11  # type: ignore[arg-type]
    assert found[DDP.name]["steps"][0]["run_id"] == "day006"  # type: ignore[index]
    assert found == history_text(capsys, "--out", str(bucket))
    # neither a folder that is named twice nor a copy is a second point
    shutil.copytree(bucket / "nightly/3", bucket / "copy")
    assert found == history_text(capsys, str(bucket), str(bucket / "nightly"))


@pytest.fixture
def memory_bucket(bucket) -> Iterator[MemoryFileSystem]:
    """The same runs in the bucket ``memory://runs``."""
    files = MemoryFileSystem()
    files.put(f"{bucket}/", "/runs", recursive=True)
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_a_bucket_is_read_as_a_folder_is(bucket, memory_bucket, capsys):
    memory_bucket.pipe("/runs/nightly/0/suite-0/trials/rank0.log", b"not copied")
    assert main(["history", "memory://runs", "--json"]) == 0
    printed = capsys.readouterr()
    (made,) = json.loads(printed.out)
    assert {series["case"]: series for series in made["series"]} == history_text(capsys, str(bucket))
    wanted = [file for file in bucket.rglob("*") if file.suffix in (".json", ".parquet")]
    assert f"history: copying {len(wanted)} files from memory://runs\n" in printed.err
    memory_bucket.pipe("/runs/nightly/0/suite-0/run.json", b"{torn")
    assert len(history_text(capsys, "memory://runs")[DDP.name]["points"]) == 10  # type: ignore[arg-type]
    assert main(["history", "memory://runs"]) == 0
    assert "skipping a run: memory://runs/nightly/0/suite-0/run.json" in capsys.readouterr().err


def test_runs_without_a_stored_trial_have_no_number_yet(tmp_path, capsys):
    stored_run(tmp_path / "runs", run_id="aaaa1111")
    assert main(["history", str(tmp_path / "runs")]) == 2
    assert (
        capsys.readouterr().err
        == f"distbench: error: history: no run in {tmp_path / 'runs'} has a number yet\n"
    )


def test_no_key_of_a_bucket_leads_out_of_the_copy(memory_bucket, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    memory_bucket.store["/runs/../escaped.json"] = MemoryFile(memory_bucket, "/runs/../escaped.json", b"{}")
    assert main(["history", "memory://runs"]) == 0
    assert list(folder.iterdir()) == []


def test_since_a_run_or_a_date_is_the_same(bucket, capsys):
    found = history_text(capsys, str(bucket), "--since", "day002")[DDP.name]["since"]
    assert found["run_id"] == "day002"  # type: ignore[index]
    assert found["change"]["effect"] == pytest.approx(-0.2)  # type: ignore[index]
    assert found == history_text(capsys, str(bucket), "--since", "2026-01-03")[DDP.name]["since"]
    assert main(["history", str(bucket), "--since", "day002"]) == 0
    assert "in total since run day002 (2026-01-03)" in " ".join(capsys.readouterr().out.split())


def test_cases_metrics_and_the_smallest_step_can_be_chosen(bucket, capsys):
    assert list(history_text(capsys, str(bucket), "--case", "fsdp*")) == [FSDP.name]
    assert history_text(capsys, str(bucket), "--least", "30%")[DDP.name]["steps"] == []
    assert main(["history", str(bucket), "--metric", "memory_peak", "--metric", "final_loss"]) == 0
    out = capsys.readouterr().out
    assert "memory_peak (B, lower is better) over runs" in out
    assert "final_loss (lower is better) over runs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s33://bucket/runs"], "s33://bucket/runs: can't be read: Protocol not known: s33"),
        (["memory://nothing/here"], "history: no run in memory://nothing/here"),
        (["nowhere"], "nowhere: no such folder"),
        (["--metric", "tokens"], "--metric = 'tokens': did you mean 'tokens_per_s'?"),
        (["--case", "zero*"], "--case = 'zero*': no such case"),
        (["--case", "*", "--case", "zero*"], "--case = 'zero*': no such case"),
        (["--since", "day00"], "--since = 'day00': matches more than one run: day000, day001"),
        (["--since", "yesterday"], "--since = 'yesterday': neither the start of a run ID nor a"),
        (["--least", "much"], "--least = 'much': expected a fraction between 0 and 1"),
    ],
)
def test_what_can_not_be_is_told(bucket, capsys, arguments, message):
    assert main(["history", "--out", str(bucket), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_runs_is_told(tmp_path, capsys):
    assert main(["history", str(tmp_path)]) == 2
    assert f"history: no run in {tmp_path}" in capsys.readouterr().err


def corrupt_record(folder: Path, **changes: object) -> None:
    file = folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_runs_that_can_not_be_read_are_left_out_by_name(bucket, capsys):
    night = {day: bucket / f"nightly/{day}/suite-{day}" for day in range(10)}
    (night[0] / "run.json").write_text("{torn")
    corrupt_record(night[1], format=FORMAT_VERSION + 1)
    corrupt_record(night[2], created="yesterday\x1b[2J")
    corrupt_record(night[3], created=7)
    corrupt_record(night[4], suite=[])
    next(night[5].glob("trials/*/*/record.json")).write_text("[]")
    record = next(night[6].glob("trials/*/*/record.json"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "values": {"tokens_per_s": "fast"}}))
    (bucket / "foreign").mkdir()
    (bucket / "foreign/run.json").write_text('{"name": "of another tool"}')
    assert main(["history", str(bucket), "--json"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)[0]["series"][0]["points"]) == 4
    warnings = printed.err.splitlines()
    whole = [line for line in warnings if line.startswith("distbench: warning: skipping a run: ")]
    partly = sorted(set(warnings) - set(whole))
    for line, day in zip(partly, (5, 6), strict=True):
        assert str(night[day]) in line and "1 trial is damaged and skipped" in line
    assert "values.tokens_per_s: 'fast'" in partly[1]
    for day in range(7):
        assert sum(str(night[day]) in line for line in warnings) == 1
    assert sum("written by a newer distbench" in line for line in warnings) == 1
    assert "\x1b" not in printed.err


def test_nothing_but_runs_that_can_not_be_read_is_told(tmp_path, capsys):
    (tmp_path / "run.json").write_text("")
    assert main(["history", str(tmp_path)]) == 2
    assert "no readable run" in capsys.readouterr().err


def test_a_run_without_a_time_zone_is_taken_as_utc():
    bare = replace(run_info(0, DDP), created="2026-01-01T05:00:00")
    made = [HistoryRun.of(RunAnalysis(bare, [measured(DDP, 1.0)])), *days([2.0])]
    assert single_series(made).values == [2.0, 1.0]


def test_names_and_facts_are_plain_text_in_the_terminal():
    hostile = "\x1b[2J\u202ebad\nline"
    named = case(hostile)
    made = [
        occasion(i, replace(measured(named), environment={"packages": {hostile: f"{i > 2}{hostile}"}}))
        for i in range(6)
    ]
    text = history_table(MetricHistory.of(made, "tokens_per_s", 0.03)).to_text(80)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "Environment changed before run day003" in " ".join(text.split())
