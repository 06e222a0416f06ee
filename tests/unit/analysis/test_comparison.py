"""Two runs side by side: what changed, what may not be compared, and what else was not the same."""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.comparison import CasePair, compare_cases
from distbench.analysis.run import RunAnalysis
from distbench.analysis.statistics.intervals import RunVariance, RunVariances, run_variance
from distbench.cli import main
from distbench.core.case import Batch, Case, PluginChoice
from distbench.record import Record
from distbench.report.comparison import (
    compare_runs,
    comparison_json,
    comparison_markdown,
    comparison_sentences,
    comparison_table,
    comparison_text,
)
from support.records import case, failed, measured, run_of, stored_run
from support.run_histories import stored
from support.runs import QUICK, call
from support.simulations import drawn

DDP, FSDP, ZERO = case("ddp"), case("fsdp"), case("zero2")


def trials(of: Case, *speeds: float, **values: float) -> list[Record]:
    return [measured(of, speed, round_=i, **values) for i, speed in enumerate(speeds)]


def pairs(before: Sequence[Record], after: Sequence[Record]) -> dict[str, CasePair]:
    sides = [run_of(*before), run_of(*after)]
    return {pair.name: pair for pair in compare_cases(*(one.cases for one in sides))}


def test_two_cases_of_one_name_have_numbers_of_their_own():
    other = case("ddp", seed=2)
    assert (other.name == DDP.name, other.id == DDP.id) == (True, False)
    before = run_of(*trials(DDP, 100, 101, 102), *trials(other, 100, 101, 102))
    after = run_of(*trials(DDP, 100, 101, 102), *trials(other, 200, 202, 204))
    changes = [(pair.id, pair.change("tokens_per_s")) for pair in compare_cases(before.cases, after.cases)]
    words = {key: change.word for key, change in changes if change}
    assert words == {DDP.id: "same", other.id: "better"}


def text_of_table(before: Sequence[Record], after: Sequence[Record]) -> str:
    made = compare_runs(run_of(*before), run_of(*after))
    return " ".join(comparison_table(made).to_text(100).split())


BEFORE = [*trials(DDP, 1000, 1010, 990), *trials(FSDP, 800, 805, 795), *trials(ZERO, 600, 606, 594)]


def test_a_change_beyond_the_noise_is_told_with_its_direction_and_interval():
    after = [*trials(DDP, 900, 909, 891), *trials(FSDP, 1200, 1205, 1195), *trials(ZERO, 603, 597, 609)]
    words = {name.split("/")[0]: pair.change("tokens_per_s") for name, pair in pairs(BEFORE, after).items()}
    assert {name: change.word for name, change in words.items()} == {
        "ddp": "worse",
        "fsdp": "better",
        "zero2": "same",
    }
    ratio = words["ddp"].ratio
    assert ratio.value == pytest.approx(0.9)
    assert ratio.low < 0.9 < ratio.high < 1
    text = text_of_table(BEFORE, after)
    assert "Throughput of 3 cases: 1 measurably faster, 1 measurably slower, 1 within" in text
    assert "fsdp/ws2/mb4/fp32, 800 tokens/s before and 1,200 tokens/s now." in text


def test_of_memory_less_is_better_and_the_same_is_the_same():
    after = [*trials(DDP, 1000, 1010, 990, memory_peak=2e6), *trials(FSDP, 800, 805, 795)]
    found = pairs(BEFORE, after)
    assert found[DDP.name].change("memory_peak").word == "worse"
    assert found[FSDP.name].change("memory_peak").word == "same"


def test_memory_that_has_two_levels_changes_with_neither():
    """FSDP2 on gloo peaks at one of two levels 2.8 % apart; the other cases at the same in every trial."""
    low, high = 1e6, 1.028e6

    def levels(*peaks: float) -> list[Record]:
        steady = [record for of in (DDP, ZERO) for record in trials(of, 1000, 1010, 990)]
        return [*steady, *(measured(FSDP, 800, round_=i, memory_peak=peak) for i, peak in enumerate(peaks))]

    found = pairs(levels(low, low, high), levels(low, high, high))
    change = found[FSDP.name].change("memory_peak")
    assert (change.word, change.before.value) == ("same", pytest.approx((low * low * high) ** (1 / 3)))
    steady = found[DDP.name].change("memory_peak")
    assert (steady.before.value, steady.after.value) == (1e6, 1e6), "other cases' trials say nothing of it"


def test_bytes_that_are_the_same_in_all_trials_are_compared_to_the_byte():
    large = 3 * 2**41 + 1
    before, after = (trials(DDP, 1000, 1010, 990, comm_bytes=large + more) for more in (0, 2))
    change = pairs(before, after)[DDP.name].change("comm_bytes")
    assert (change.before.value, change.after.value) == (large, large + 2)


def between_day_sentence(draws: int, spread: float, *, is_known: bool) -> float:
    """Part of the comparisons of the same code on two days that find a difference, if days so differ."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(draws):
        offsets = rng.normal(0, spread, 12)
        trials_of_days = 1000 * np.exp(offsets[:, None] + rng.normal(0, 0.005, (12, 3)))
        *earlier, before, after = trials_of_days.tolist()
        known = run_variance([[statistics.median(trials_of_day) for trials_of_day in earlier]])
        assert known is not None
        past = RunVariances({(DDP.id, "tokens_per_s"): known} if is_known else {})
        rows = (run_of(*trials(DDP, *speeds)).cases for speeds in (before, after))
        (pair,) = compare_cases(*rows, past)
        found.append(pair.change("tokens_per_s").word != "same")
    return float(np.mean(found))


@drawn(150)
def test_days_that_differ_are_no_change_of_code_where_other_days_say_how_much(draws):
    assert between_day_sentence(draws, 0.02, is_known=False) > 0.3
    # two standard errors of a share of 150
    assert between_day_sentence(draws, 0.02, is_known=True) <= 0.05 + 0.036


@pytest.mark.parametrize(
    ("cases", "draws"),
    [(8, 25), (37, 12), pytest.param(37, 25, marks=[pytest.mark.train, pytest.mark.deep])],
)
def test_of_many_cases_of_the_same_code_none_is_called_faster_or_slower(cases, draws):
    rounds = 3
    rng = np.random.default_rng(5)
    alike = [case(f"case{i}") for i in range(cases)]

    def one_day() -> list[CaseSummary]:
        drawn = 1000 * np.exp(rng.normal(0, 0.03, (cases, rounds)))
        return run_of(
            *(each for of, row in zip(alike, drawn.tolist(), strict=True) for each in trials(of, *row))
        ).cases

    told = []
    for _ in range(draws):
        changes = [pair.change("tokens_per_s") for pair in compare_cases(one_day(), one_day())]
        assert len(changes) == cases
        told.append(any(change.word != "same" for change in changes))
    # without the allowance any of 37 is told in 68% of these pairs of runs
    assert np.mean(told) <= 0.08


def test_a_change_beyond_what_days_differ_by_is_told_and_says_what_it_rests_on():
    past = RunVariances({(DDP.id, "tokens_per_s"): RunVariance(0.01, 7)})
    before, after = run_of(*trials(DDP, 1000, 1001, 999)), run_of(*trials(DDP, 800, 801, 799))
    (pair,) = compare_cases(before.cases, after.cases, past)
    change = pair.change("tokens_per_s")
    assert (change.word, change.run_degrees_of_freedom) == ("worse", 6)
    assert change.ratio.half_log_width == pytest.approx(2.447 * 2**0.5 * 0.01, rel=1e-3)
    made = compare_runs(before, after, past)
    assert "include the run-to-run variance of earlier runs without changes (6 degrees" in " ".join(
        comparison_sentences(made)
    )
    unknown = compare_runs(before, after)
    assert "is unknown" in " ".join(comparison_sentences(unknown))


def test_runs_before_and_after_a_step_do_not_make_days_differ():
    assert run_variance([[100.0, 101.0, 99.0], [50.0, 50.5, 49.5]]).deviation == pytest.approx(0.01, rel=0.01)
    assert run_variance([[100.0, 101.0], [50.0]]) is None
    assert run_variance([[0.0, 101.0, 100.0]]) is None


def test_compare_reads_how_much_other_runs_of_the_case_differ(tmp_path, capsys):
    folders = [
        stored(tmp_path / f"{day}", day, *trials(DDP, speed, speed * 1.001)).folder
        for day, speed in enumerate((1000, 1030, 970, 1020, 980, 1010, 950))
    ]
    assert main(["compare", str(folders[0]), str(folders[-1]), "--out", str(tmp_path), "--json"]) == 0
    change = json.loads(capsys.readouterr().out)[0]["cases"][0]["changes"]["tokens_per_s"]
    assert (change["word"], change["days"]) == ("same", 4)
    assert (
        main(["compare", str(folders[0]), str(folders[-1]), "--out", str(tmp_path / "none"), "--json"]) == 0
    )


def test_why_nothing_is_known_of_other_days_is_said(two_runs, capsys, monkeypatch):
    assert main(["compare", *two_runs, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["days_absent"].startswith("3 runs")
    monkeypatch.setitem(sys.modules, "ruptures", None)
    assert main(["compare", *two_runs, "--json"]) == 0
    assert "needs ruptures, which is missing" in json.loads(capsys.readouterr().out)[0]["days_absent"]
    assert main(["compare", *two_runs]) == 0
    assert "detecting changes between runs needs ruptures" in " ".join(capsys.readouterr().out.split())


def test_other_runs_that_can_not_be_read_are_named(tmp_path, two_runs, capsys):
    torn = tmp_path / "torn/run.json"
    torn.parent.mkdir()
    torn.write_text("{")
    assert main(["compare", *two_runs, "--out", str(tmp_path)]) == 0
    assert f"skipping a run: {torn}" in capsys.readouterr().err


def test_from_one_trial_each_no_difference_is_called_better_or_worse():
    change = pairs(trials(DDP, 1000), trials(DDP, 500))[DDP.name].change("tokens_per_s")
    assert (change.word, change.ratio.half_log_width) == ("unknown", None)


@pytest.mark.parametrize(
    ("alone", "both", "ratio", "word", "pace"),
    [
        (600, 900, 0.9, "worse", "worse"),
        (540, 900, 1.0, "same", "worse"),
        (540, 1000, 1.111, "better", "same"),
    ],
)
def test_scaling_efficiency_is_compared_beside_the_pace(alone, both, ratio, word, pace):
    """X2 / (2 X1) was 1000 / (2 * 600)."""
    one = case("ddp", 1)
    before = [*trials(one, 600, 601, 599), *trials(DDP, 1000, 1001, 999)]
    found = pairs(before, [*trials(one, alone, alone + 1), *trials(DDP, both, both + 1)])
    change = found[DDP.name].change("efficiency")
    assert change.before.value == pytest.approx(0.8333, abs=1e-4)
    assert change.ratio.value == pytest.approx(ratio, abs=2e-3)
    assert change.ratio.half_log_width > found[DDP.name].change("tokens_per_s").ratio.half_log_width, (
        "the noise of four means"
    )
    assert (change.word, found[DDP.name].change("tokens_per_s").word) == (word, pace)
    assert found[one.name].change("efficiency") is None, "on one device it is 1 by definition"


def test_without_one_device_in_both_runs_there_is_no_efficiency_to_compare():
    one = case("ddp", 1)
    before = [*trials(one, 600, 601), *trials(DDP, 1000, 1001)]
    found = pairs(before, [failed(one), *trials(DDP, 1000, 1001)])[DDP.name]
    assert found.change("efficiency") is None
    assert found.change("tokens_per_s") is not None


def test_a_case_that_was_asked_to_do_other_work_is_not_compared():
    larger = replace(DDP, batch=Batch(16, 8, 1))
    pair = pairs(BEFORE, trials(larger, 2000, 2010))[DDP.name]
    assert pair.incomparable.startswith("different configuration: batch.global_batch_size = 16, was 8")
    assert pair.changes == ()


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ([failed(DDP)], "crashed in the second run: rank 1 in time: RuntimeError: no"),
    ],
)
def test_a_case_without_numbers_that_count_is_not_compared(after, reason):
    assert pairs(BEFORE, after)[DDP.name].incomparable == reason


def test_noise_withholds_times_and_leaves_memory_bytes_and_losses():
    noisy = [replace(each, degraded="others computed") for each in trials(DDP, 500, 510, memory_peak=2e6)]
    found = pairs(trials(DDP, 1000, 1010), noisy)[DDP.name]
    assert found.incomparable == ""
    assert found.disturbed == "measured on a noisy machine in the second run: others computed"
    assert {change.column: change.word for change in found.changes} == {
        "memory_peak": "worse",
        "comm_bytes": "same",
        "final_loss": "same",
    }
    assert found.notes == (f"Times are not compared: {found.disturbed}",)


def test_cases_of_one_run_only_are_named():
    found = pairs([*trials(DDP, 1000)], [*trials(FSDP, 1000)])
    assert {name.split("/")[0]: pair.incomparable for name, pair in found.items()} == {
        "ddp": "only in the first run",
        "fsdp": "only in the second run",
    }


def run_with_environment(
    records: Sequence[Record], effective: dict[str, Any], **environment: Any
) -> list[Record]:
    return [replace(each, effective=effective, environment=environment) for each in records]


def test_an_engine_that_did_other_work_is_not_compared_and_another_pace_is_noted():
    trial = trials(DDP, 1000, 1010)
    found = pairs(
        run_with_environment(trial, {"clip_grad_norm": 1.0}),
        run_with_environment(trial, {"clip_grad_norm": None}),
    )[DDP.name]
    assert "clip_grad_norm = none, was 1.0" in found.incomparable
    found = pairs(run_with_environment(trial, {}, threads=1), run_with_environment(trial, {}, threads=4))[
        DDP.name
    ]
    assert not found.incomparable
    assert [note.partition(":")[0] for note in found.notes] == ["process.threads = 4, was 1"]


def test_what_differs_in_the_environment_is_told():
    old = run_with_environment(trials(DDP, 1000), {}, packages={"torch": "2.12"}, cpu="x")
    new = run_with_environment(trials(DDP, 1000), {}, packages={"torch": "2.13"}, cpu="x")
    assert "Environment: packages.torch: 2.12, now 2.13." in text_of_table(old, new)
    assert "No recorded environment difference" in text_of_table(old, old)


@pytest.fixture
def two_runs(tmp_path) -> list[str]:
    return [
        str(stored_run(tmp_path / f"{speed}", *trials(DDP, speed, speed * 1.01, speed * 0.99)).folder)
        for speed in (1000, 900)
    ]


def test_compare_prints_a_table_and_json(two_runs, capsys):
    assert main(["compare", *two_runs]) == 0
    assert "0.900 (" in capsys.readouterr().out
    assert main(["compare", *two_runs, "--json"]) == 0
    change = json.loads(capsys.readouterr().out)[0]["cases"][0]["changes"]["tokens_per_s"]
    assert (change["word"], change["ratio"]["value"]) == ("worse", pytest.approx(0.9))


def test_one_run_alone_is_compared_with_nothing(two_runs, capsys):
    assert main(["compare", two_runs[0]]) == 2
    assert "compare needs two runs" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_named(two_runs, capsys):
    assert main(["compare", two_runs[0], "nowhere"]) == 2
    assert "nowhere: no such run" in capsys.readouterr().err


def test_what_differs_stands_before_the_numbers_and_in_markdown_too():
    old, new = run_of(*BEFORE), run_of(*trials(DDP, 900, 909, 891))
    machine = {"packages": {"torch": "2.12"}}, {"packages": {"torch": "2.13"}}
    sides = [
        RunAnalysis(replace(each.info, machine=facts), each.records)
        for each, facts in zip((old, new), machine, strict=True)
    ]
    made = compare_runs(*sides)
    told = comparison_text(made, 100)
    assert told.index("packages.torch: 2.12, now 2.13") < told.index("tokens/s  ")
    page = comparison_markdown(made)
    assert page.index("packages.torch: 2.12, now 2.13") < page.index("<details>")
    assert " | 0.900 (" in page


def test_a_hostile_name_is_text_in_markdown():
    name = "x](javascript:alert(1)) @all <b> | `"
    hostile = replace(DDP, name=name, label=name)
    made = compare_runs(run_of(*trials(hostile, 1000, 1010)), run_of(*trials(hostile, 900, 909)))
    page = comparison_markdown(made)
    assert "](" not in page
    assert "@all" not in page
    assert "<b>" not in page


@pytest.mark.train
def test_a_suite_in_the_place_of_a_run_is_run_first(run_suite):
    done = run_suite(QUICK + "strategies: [ddp]")
    out = done.folder.parent
    told = call(
        "compare", str(done.folder), str(out.parent / "suite.yaml"), "--out", str(out), "--json", "-q"
    )
    assert told.returncode == 0, told.stderr
    ((case,),) = (made["cases"] for made in json.loads(told.stdout))
    assert case["case"] == "ddp/ws2/mb4/fp32"
    assert len(list(out.glob("*/run.json"))) == 2


def of_preset(preset: str, label: str, size: int, **changes: Any) -> Case:
    workload = PluginChoice("transformer", {"preset": preset, "seq_len": 64})
    return case(label, workload=workload, batch=Batch(size, size // 2, 1), **changes)


def test_runs_of_another_model_are_told_apart_first_and_matched_by_strategy():
    before = [*trials(of_preset("tiny", "ddp", 8), 1000, 1010), *trials(of_preset("tiny", "zero2", 8), 600)]
    after = [*trials(of_preset("1b", "ddp", 16), 100, 101), *trials(of_preset("1b", "fsdp", 16), 160, 161)]
    made = compare_runs(run_of(*before), run_of(*after))
    first, *_ = comparison_sentences(made)
    assert first.startswith(
        "The runs do different work: workload.preset = 1b, was tiny, batch.global_batch_size"
    )
    assert "seq_len" not in first
    found = {pair.name.split("/")[0]: pair for pair in made.pairs}
    pace = found["ddp"].change("tokens_per_s")
    assert pace
    assert (pace.word, pace.ratio.value) == ("other", pytest.approx(0.1, rel=0.01))
    assert found["zero2"].incomparable == "only in the first run"
    assert "exactly one case" in found["fsdp"].incomparable
    assert {change.word for pair in made.pairs for change in pair.changes} <= {"other", "same", "unknown"}
    assert comparison_json(made)["different_work"]["workload.preset"] == ["tiny", "1b"]


def test_what_both_runs_have_is_compared_although_other_cases_differ():
    larger = replace(FSDP, batch=Batch(16, 8, 1))
    made = compare_runs(run_of(*BEFORE), run_of(*trials(DDP, 1100, 1110), *trials(larger, 100, 101)))
    assert made.work_differences == {}
    assert [pair.name for pair in made.pairs if pair.change("tokens_per_s")] == [DDP.name]


def test_a_strategy_with_several_cases_is_matched_with_none_of_them():
    several = [of_preset("1b", "ddp", 8, threads=n, name=f"ddp/t{n}") for n in (1, 2)]
    after = [record for of in several for record in trials(of, 100, 101)]
    made = compare_runs(run_of(*trials(of_preset("tiny", "ddp", 8), 1000)), run_of(*after))
    whys = [pair.incomparable for pair in made.pairs if pair.after]
    assert (
        whys == ["the runs do not both have exactly one case of this strategy on this number of devices"] * 2
    )


@pytest.mark.parametrize("form", ["", "--md"])
def test_the_same_run_twice_is_noticed(form, tmp_path, command):
    run = str(stored(tmp_path / "1", 1, *BEFORE).folder)
    code, output, _ = command("compare", run, f"{run}/", *form.split())
    assert (code, "Both are the same run" in output, "ddp" in output) == (0, True, False)
