"""What ``gate:`` in a suite allows, which cases of two plans go together, and what a machine can resolve."""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.cli import main
from distbench.core.case import Batch, OptimizerConfig, PluginChoice
from distbench.core.errors import UsageError
from distbench.core.measurement import MeasureConfig
from distbench.gate import calibration, view
from distbench.gate.arms import GateArm
from distbench.gate.calibration import CaseCalibration
from distbench.gate.case_matching import match_cases
from distbench.gate.forecast import forecast, forecast_matched
from distbench.gate.sequential_test import PairRule, detectable_loss, resolvable_effect
from distbench.gate.verdicts import CaseVerdict, GateResult, MetricFinding
from distbench.ipc.launch_spec import PythonTarget
from distbench.plan import Plan, PlannedCase
from distbench.record import SECOND_SERIES_START
from distbench.suite import Suite, load_suite
from distbench.suite.gate import MAX_PAIRS, GateRules, Tolerances
from support import records
from support.suites import refusal, write_suite

SUITE = """\
workload: transformer
batch: {global_batch_size: 8}
strategies: [ddp, {zero: {stage: [2, 3]}}]
world_sizes: [2]
device: cpu
gate: """


@pytest.fixture
def write(tmp_path) -> Callable[[str], Path]:
    return lambda gate: write_suite(tmp_path, SUITE + gate + "\n", "mine.yaml")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DISTBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# the rules of a suite


@pytest.mark.parametrize("written", ["3%", "3 %", "0.03", "'0.03'", "{max_drop: 3%}", "{max_increase: 0.03}"])
def test_a_tolerance_may_be_written_in_any_of_these_forms(write, written):
    tolerances = load_suite(write(f"{{tokens_per_s: {written}, peak_memory: {written}}}")).gate.tolerances
    assert tolerances == Tolerances(tokens_per_s=0.03, peak_memory=0.03)


def test_what_is_false_is_not_gated_and_what_is_counted_may_be_exact(write):
    tolerances = load_suite(write("{efficiency: false, peak_memory: 0, comm_bytes: 0%}")).gate.tolerances
    assert tolerances == Tolerances(efficiency=None, peak_memory=0.0, comm_bytes=0.0)


def test_the_first_glob_that_matches_a_label_or_a_name_rules_over_what_the_suite_says(write):
    gate = load_suite(
        write(
            "{tokens_per_s: 4%, strategies: {zero3*: {efficiency: 9%}, '*/ws2/*': {tokens_per_s: 8%}, "
            "ddp: {tokens_per_s: 1%}}}"
        )
    ).gate
    assert gate.tolerances_for("zero3", "zero3/ws2/mb4") == Tolerances(tokens_per_s=0.04, efficiency=0.09)
    assert gate.tolerances_for("ddp", "ddp/ws2/mb4").tokens_per_s == 0.08
    assert gate.tolerances_for("ddp", "ddp/ws4/mb4").tokens_per_s == 0.01
    assert gate.tolerances_for("fsdp", "fsdp/ws4/mb4") == gate.tolerances


def test_what_is_resolved_is_a_suite_with_the_same_rules(write):
    suite = load_suite(
        write(
            "{efficiency: false, comm_bytes: 1%, strategies: {'zero*': {peak_memory: false}}, min_pairs: 6, "
            "max_pairs: 12, minutes: 30, equivalence: required, checkpoint: required}"
        )
    )
    again = Suite.from_resolved(json.loads(json.dumps(suite.to_resolved())))
    assert again.gate == suite.gate
    assert again.gate.required_kinds == ("equivalence", "checkpoint")
    assert again.gate.tolerances_for("zero3", "").peak_memory is None


_FRACTION = "expected a fraction between 0 and 1, such as"


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("{efficency: 3%}", "mine.yaml:6: gate.efficency = '3%': unknown key; did you mean 'efficiency'?"),
        ("{tokens_per_s: 0}", "mine.yaml:6: gate.tokens_per_s = 0: must be above 0"),
        ("{efficiency: 200%}", f"mine.yaml:6: gate.efficiency = '200%': {_FRACTION}"),
        ("{peak_memory: -1%}", f"mine.yaml:6: gate.peak_memory = '-1%': {_FRACTION}"),
        ("{comm_bytes: true}", f"mine.yaml:6: gate.comm_bytes = true: {_FRACTION}"),
        ("{tokens_per_s: }", f"mine.yaml:6: gate.tokens_per_s: {_FRACTION}"),
        ("{tokens_per_s: {max_drp: 3%}}", f"mine.yaml:6: gate.tokens_per_s = {{max_drp: '3%'}}: {_FRACTION}"),
        ("{min_pairs: 2}", "mine.yaml:6: gate.min_pairs = 2: must be at least 3"),
        ("{min_pairs: 9, max_pairs: 5}", "mine.yaml:6: gate.min_pairs = 9: must be at most max_pairs = 5"),
        ("{minutes: 0}", "mine.yaml:6: gate.minutes = 0: must be above 0"),
        ("{checkpoint: maybe}", "mine.yaml:6: gate.checkpoint = 'maybe': Allowed: ignored, required"),
        ("{convergence: maybe}", "mine.yaml:6: gate.convergence = 'maybe': Allowed: ignored, required"),
        ("{strategies: {ddp: {tokens: 3%}}}", "mine.yaml:6: gate.strategies.ddp.tokens: unknown key;"),
        ("{strategies: {ddp: 3%}}", "mine.yaml:6: gate.strategies.ddp = '3%': expected a mapping"),
        ("3%", "mine.yaml:6: gate = '3%': expected a mapping"),
    ],
)
def test_a_bad_rule_is_refused_where_it_stands(write, gate, said):
    (mistake,) = refusal(write(gate))
    assert mistake.startswith(said)


def test_all_that_is_wrong_is_told_at_once(write):
    mistakes = refusal(write("{max_pairs: 1.5, comm_calls: x, strategies: {ddp: {efficiency: 0, other: 1}}}"))
    keys = [mistake.split(" ")[1].rstrip(":") for mistake in mistakes]
    assert sorted(keys) == [
        "gate.comm_calls",
        "gate.max_pairs",
        "gate.strategies.ddp.efficiency",
        "gate.strategies.ddp.other",
    ]


# cases of two plans


def plan(*cases, **problems: str) -> Plan:
    return Plan([PlannedCase(case, problems.get(case.label)) for case in cases], [])


DDP, ZERO = records.case("ddp"), records.case("zero3")
OTHER_BUCKET_SIZE = records.case("ddp", strategy=PluginChoice("ddp", {"bucket_cap_mb": 1}))


def verdict_words(found) -> dict[str, str]:
    return {each.case: each.word for each in found.verdicts}


def test_cases_of_the_same_work_go_together():
    found = match_cases(plan(DDP, ZERO), plan(ZERO, DDP))
    assert found.slots == [(ZERO, ZERO), (DDP, DDP)]
    assert (found.verdicts, found.skipped) == ([], {})


def test_cases_of_the_same_name_go_together_where_a_value_is_changed():
    (slot,) = match_cases(plan(OTHER_BUCKET_SIZE), plan(DDP)).slots
    assert slot == (OTHER_BUCKET_SIZE, DDP)


def test_cases_whose_names_tell_the_changed_value_go_together_by_place():
    small, large = (
        records.case(label, strategy=PluginChoice("ddp", {"bucket": label})) for label in ("ddp+1", "ddp+25")
    )
    found = match_cases(plan(small, ZERO), plan(large, ZERO))
    assert found.slots == [(small, large), (ZERO, ZERO)]


def test_a_case_that_is_gone_is_missing_and_a_new_one_is_told():
    assert verdict_words(match_cases(plan(DDP, ZERO), plan(DDP))) == {ZERO.name: "missing"}
    found = match_cases(plan(DDP), plan(DDP, ZERO))
    assert not found.verdicts
    assert found.skipped == {ZERO.name: "new: the baseline has no such case"}


def test_what_only_one_arm_can_run_is_broken_or_incomparable_and_what_none_can_is_skipped():
    assert verdict_words(match_cases(plan(DDP), plan(DDP, ddp="no GPU"))) == {DDP.name: "broken"}
    assert verdict_words(match_cases(plan(DDP, ddp="no GPU"), plan(DDP))) == {DDP.name: "incomparable"}
    none = match_cases(plan(DDP, ddp="no GPU"), plan(DDP, ddp="no GPU"))
    assert (none.skipped, none.verdicts, none.slots) == ({DDP.name: "no GPU"}, [], [])


@pytest.mark.parametrize(
    ("axis", "changes"),
    [
        ("seed", {"seed": 2}),
        ("initial_weights", {"initial_weights": "drawn"}),
        ("activation_checkpointing", {"activation_checkpointing": "full"}),
        ("optimizer.lr", {"optimizer": OptimizerConfig(lr=0.5)}),
        ("batch.global_batch_size", {"batch": Batch(16, 8, 1)}),
    ],
)
def test_other_work_is_never_compared(axis, changes):
    (told,) = match_cases(plan(DDP), plan(replace(DDP, **changes))).verdicts
    assert told.word == "incomparable" and told.said.endswith(f": {axis}")


def test_how_a_case_cuts_its_batch_is_no_other_work():
    (slot,) = match_cases(plan(DDP), plan(replace(DDP, batch=Batch(8, 2, 2), threads=2))).slots
    assert slot == (DDP, replace(DDP, batch=Batch(8, 2, 2), threads=2))


# what a machine can resolve


def calibration_of(spread: float = 0.103, steps: int = 10, **changes) -> CaseCalibration:
    told = CaseCalibration(
        "ddp", {"tokens_per_s": spread, "efficiency": spread}, 10, 0.5, steps, "2026-01-01"
    )
    return replace(told, **changes)


def test_what_was_calibrated_is_kept_beside_what_was_known(cache):
    file = calibration.save_calibrations({"a": calibration_of(steps=10)})
    assert calibration.save_calibrations({"b": calibration_of(steps=20)}) == file
    assert file.is_relative_to(cache)
    assert calibration.load_calibrations(MeasureConfig(steps=10)) == {"a": calibration_of(steps=10)}
    assert calibration.load_calibrations(MeasureConfig(steps=20)) == {"b": calibration_of(steps=20)}
    assert calibration.load_calibrations(MeasureConfig(steps=30)) == {}


def test_calibrations_that_end_at_the_same_time_keep_each_others_cases(cache):
    cases = [f"case {i}" for i in range(16)]
    with ThreadPoolExecutor(8) as many:
        for saved in [many.submit(calibration.save_calibrations, {case: calibration_of()}) for case in cases]:
            saved.result()
    assert sorted(calibration.load_calibrations(MeasureConfig())) == sorted(cases)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "\x00",
        '{"format": 1}',
        '{"format": 1, "cases": {"a": 1}}',
        '{"format": 1, "cases": {"a": {"case": "ddp"}}}',
        '{"format": 2, "cases": {"a": KNOWN}}',
        '{"format": 1, "cases": {"a": WIDE}}',
    ],
)
def test_a_calibration_that_is_no_such_file_is_as_good_as_not_there(cache, content):
    file = calibration.save_calibrations({"a": calibration_of()})
    of_case = json.dumps(json.loads(file.read_text())["cases"]["a"])
    wide = of_case.replace("0.103", "NaN")
    file.write_text(content.replace("KNOWN", of_case).replace("WIDE", wide))
    assert calibration.load_calibrations(MeasureConfig()) == {}
    calibration.save_calibrations({"b": calibration_of()})
    assert calibration.load_calibrations(MeasureConfig()) == {"b": calibration_of()}


def test_what_pairs_of_equal_arms_have_shown_is_the_calibration():
    noisy = MetricFinding("tokens_per_s", "pass", "", 0.03, 1.0, 0.99, 1.01, 8, deviation=0.02)
    counted = MetricFinding("comm_bytes", "pass", "unchanged", 0.0, 1.0)
    cases = (
        CaseVerdict(DDP.name, "ddp", 2, (noisy, counted), minutes_per_pair=0.5),
        CaseVerdict(ZERO.name, "zero3", 2, (MetricFinding("trial", "broken", "ended"),)),
    )
    found = calibration.calibrations_from(
        GateResult("", "", "", "", cases), [DDP, ZERO], MeasureConfig(steps=10)
    )
    assert [*found] == [DDP.id]
    assert (found[DDP.id].deviations, found[DDP.id].pairs) == ({"tokens_per_s": 0.02}, 8)


def test_a_tolerance_below_what_the_machine_resolves_is_refused_with_the_numbers():
    with pytest.raises(UsageError) as refused:
        calibration.check_resolution(GateRules(), [DDP], {DDP.id: calibration_of()})
    smallest = resolvable_effect(0.103, 20)
    assert str(refused.value).startswith(f"gate.tokens_per_s = 3%: for {DDP.name} ")
    assert f"{smallest * 100:.1f}% on with 20 pairs" in str(refused.value)
    assert "gate.max_pairs to 61 (about 30 min 30 s) or measure.steps" in str(refused.value)
    with pytest.raises(UsageError, match=r"measure\.steps") as refused:
        calibration.check_resolution(GateRules(), [DDP], {DDP.id: calibration_of(0.9)})
    assert "gate.max_pairs" not in str(refused.value)


def test_a_spread_that_few_pairs_know_badly_refuses_nothing_that_a_smaller_one_would_resolve():
    spread = calibration_of(0.07)
    assert spread.resolvable_change("tokens_per_s", 20) > 0.03
    calibration.check_resolution(GateRules(), [DDP], {DDP.id: replace(spread, pairs=6)})
    with pytest.raises(UsageError, match="this machine detects changes only from"):
        calibration.check_resolution(GateRules(), [DDP], {DDP.id: replace(spread, pairs=100)})


def test_a_tolerance_that_the_machine_resolves_or_that_is_not_known_is_not_refused():
    calibration.check_resolution(GateRules(), [DDP], {DDP.id: calibration_of(0.044)})
    calibration.check_resolution(GateRules(), [DDP], {ZERO.id: calibration_of()})
    off = GateRules(tolerances=Tolerances(tokens_per_s=None, efficiency=None))
    calibration.check_resolution(off, [DDP], {DDP.id: calibration_of()})


# what is foreseen


def test_a_forecast_tells_time_and_what_can_be_seen_as_far_as_it_is_known(write):
    suite = load_suite(write("{min_pairs: 5, max_pairs: 20}"))
    arms = GateArm("main", suite, machine={}), GateArm("mine", suite, machine={})
    found = match_cases(plan(DDP, ZERO), plan(DDP, ZERO))
    made = forecast_matched(*arms, found, {DDP.id: calibration_of(0.044)})
    row, blind = made.rows
    # a warm-up, and the pairs that this spread takes for 3 %
    assert (row.case, row.trials, row.minutes) == (DDP.name, (12, 42), (7.5, 10.5))
    assert row.sees == pytest.approx(detectable_loss(0.044, PairRule(0.03, 5, 20)))
    assert row.sees > resolvable_effect(0.044, 20), "two series have to see it, and in nine gates of ten"
    assert (blind.trials, blind.minutes, blind.sees) == ((12, 42), None, None)
    lines = view.forecast_text(made, 120).splitlines()
    assert lines[0].startswith("mine: mine ")
    assert lines[0].endswith(" main")
    assert [DDP.name, "12–42", "7.5–10.5", "4.9%"] in [line.split() for line in lines]
    assert [ZERO.name, "12–42", "–", "–"] in [line.split() for line in lines]
    total = "Total: 24 to 84 trials of 2 cases, 8 to 10 minutes for 1 of them; the others have never run."
    assert lines[1].startswith(total)
    assert any(line.startswith("1 case not calibrated on this machine: ") for line in lines)
    assert json.loads(json.dumps(made.to_json()))["rows"][0]["case"] == DDP.name


@pytest.mark.parametrize(
    ("minutes", "pairs", "told"),
    [
        (5, 9, "5 to 9 pairs of trials per case (max_pairs = 20, limited by gate.minutes = 5)"),
        (60, 20, "5 to 20 pairs of trials per case (within gate.minutes = 60)"),
        (0.8, 0, "0 to 0 pairs of trials per case (max_pairs = 20, limited by gate.minutes = 0.8)"),
    ],
)
def test_a_forecast_foresees_no_more_pairs_than_the_minutes_allow(write, minutes, pairs, told):
    suite = load_suite(write(f"{{min_pairs: 5, max_pairs: 20, minutes: {minutes}}}"))
    arm = GateArm("main", suite, machine={})
    # half a minute a pair, one of them thrown away
    made = forecast_matched(arm, arm, match_cases(plan(DDP), plan(DDP)), {DDP.id: calibration_of(0.044)})
    assert told in made.caption
    (row,) = made.rows
    assert row.trials[1] == 2 * (1 + pairs)
    assert row.minutes[1] == 0.5 * (1 + pairs)
    rule = PairRule(0.03, min(5, pairs), pairs)
    assert row.sees == (pytest.approx(detectable_loss(0.044, rule)) if pairs else None)


def test_a_forecast_takes_the_time_of_cases_that_are_not_calibrated_from_earlier_runs(write):
    arm = GateArm("main", load_suite(write("{min_pairs: 5, max_pairs: 20}")), machine={})
    made = forecast_matched(arm, arm, match_cases(plan(DDP), plan(DDP)), {}, {DDP.id: 30.0})
    assert made.rows[0].minutes == (6.0, 21.0)
    assert made.caption.startswith("Total: 12 to 42 trials of 1 case, 6 to 21 minutes.")
    assert "duration unknown" in forecast_matched(arm, arm, match_cases(plan(DDP), plan(DDP)), {}).caption


def test_a_forecast_says_which_cases_the_change_does_not_touch(write):
    arms = (
        GateArm("main", load_suite(write("{}")), machine={}),
        GateArm("mine", load_suite(write("{}")), machine={}),
    )
    changed = replace(ZERO, strategy=PluginChoice("zero", {"stage": 2, "overlap_comm": True}))
    made = forecast_matched(*arms, match_cases(plan(DDP, ZERO), plan(DDP, changed)), {})
    told = "1 of 2 cases are identical in both versions. To skip them, select the others with --only GLOB: "
    assert made.notes[1] == f"{told}{ZERO.name}."
    same = forecast_matched(*arms, match_cases(plan(DDP, ZERO), plan(DDP, ZERO)), {})
    other = forecast_matched(*arms, match_cases(plan(ZERO), plan(changed)), {})
    # the code or the environment is another one, so that every case is touched
    moved = replace(arms[0], target=PythonTarget(working_directory="/elsewhere"))
    every = forecast_matched(moved, arms[1], match_cases(plan(DDP, ZERO), plan(DDP, changed)), {})
    assert not any("--only" in note for made in (same, other, every) for note in made.notes)


def test_the_rounds_of_a_second_series_are_none_that_a_first_may_have():
    assert SECOND_SERIES_START >= MAX_PAIRS


def test_a_forecast_tells_what_will_not_be_run_in_pairs(write):
    arm = GateArm("main", load_suite(write("{}")), machine={})
    found = match_cases(plan(DDP, ZERO, ddp="no GPU"), plan(DDP, ddp="no GPU"))
    made = forecast_matched(arm, arm, found, {})
    assert made.rows == ()
    assert made.notes == (
        f"{ZERO.name}: trial: the candidate has no such case.",
        f"{DDP.name}: not run: no GPU.",
    )


def test_a_forecast_of_a_suite_launches_nothing_and_leaves_nothing(write, cache):
    arm = GateArm("main", load_suite(write("{}")), machine={})
    made = forecast(arm, arm)
    # without torch no case can be run, and each says so
    assert len(made.rows) + sum("not run: " in note for note in made.notes) == 3
    assert not cache.exists()


@pytest.mark.train
def test_a_revision_has_the_cases_of_its_own_suite(write, tmp_path, monkeypatch, capsys):
    file = write("{max_pairs: 7}")
    git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "It trains"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    file.write_text(file.read_text().replace("stage: [2, 3]", "stage: [2]"))
    monkeypatch.chdir(tmp_path)
    code = main(["gate", str(file), "--baseline", "main", "--dry-run"])
    assert code == 0, capsys.readouterr().err
    assert "zero3" in capsys.readouterr().out
