"""Whether the cases of a comparison did the same work: differences named, classified and shown."""

import copy
import dataclasses
import json
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, Case, OptimizerConfig, PrecisionConfig
from distbench.record import Record
from distbench.report import page
from distbench.report.overview import overview_text
from distbench.tables.table import Table
from distbench.views.base import all_views
from support.records import case, measured, run_of
from support.runs import Finished, run_in

EFFECTIVE: dict[str, Any] = {
    "engine": "TorchEngine",
    "parameters": 100,
    "world_size": 2,
    "optimizer": {"class": "torch.optim.adamw.AdamW", "kernel": "fused", "lr": 0.001, "betas": (0.9, 0.95)},
    "dtypes": {"compute": "fp32", "reduce": "fp32", "master": "fp32", "optimizer_state": "fp32"},
    "clip_grad_norm": None,
}

DDP, FSDP = case("ddp"), case("fsdp")


def record(of: Case, environment: dict[str, Any] | None = None, round_: int = 0, **changes: Any) -> Record:
    """Return a trial that told ``EFFECTIVE`` with *changes*; ``__`` stands for a dot."""
    effective = copy.deepcopy(EFFECTIVE)
    for key, value in changes.items():
        *outer, inner = key.split("__")
        place = effective[outer[0]] if outer else effective
        place[inner] = value
    told = environment if environment is not None else {"threads": 1, "tf32": False}
    return dataclasses.replace(measured(of, round_=round_), effective=effective, environment=told)


def table(run: RunAnalysis) -> Table:
    return all_views()["parity"].table(run)


def difference_kinds(change: dict[str, Any]) -> dict[str, str]:
    (comparison,) = run_of(record(DDP), record(FSDP, **change)).parity.groups
    assert comparison.reference.case == DDP
    assert comparison.differences[DDP.id] == ()
    return {each.key: each.kind for each in comparison.differences[FSDP.id]}


def test_other_rows_of_one_seed_are_other_data_and_old_records_say_nothing_of_theirs():
    ours, theirs = (record(of, data={"first_batch": rows}) for of, rows in ((DDP, "a1"), (FSDP, "b2")))
    (found,) = run_of(ours, theirs).parity.findings[FSDP.id]
    assert (found.key, found.kind) == ("data.first_batch", "work")
    assert "b2, the reference has a1: may train on different data" in str(found)
    assert not run_of(ours, record(FSDP)).parity.findings


@pytest.mark.parametrize(
    ("change", "key", "kind"),
    [
        ({"dtypes__optimizer_state": "bf16"}, "dtypes.optimizer_state", "work"),
        ({"dtypes__master": "bf16"}, "dtypes.master", "work"),
        ({"dtypes__reduce": "bf16"}, "dtypes.reduce", "work"),
        ({"dtypes__reduce": None}, "dtypes.reduce", "work"),
        ({"dtypes__of_a_plugin": "fp8"}, "dtypes.of_a_plugin", "work"),
        ({"optimizer__kernel": "foreach"}, "optimizer.kernel", "work"),
        ({"optimizer__betas": (0.9, 0.999)}, "optimizer.betas", "work"),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm", "work"),
        ({"parameters": 101}, "parameters", "work"),
        ({"loss_scale": 128.0}, "loss_scale", "work"),
        ({"environment": {"threads": 1, "tf32": True}}, "process.tf32", "work"),
        ({"environment": {"threads": 2, "tf32": False}}, "process.threads", "speed"),
        ({"engine": "FSDPModule"}, "engine", "strategy"),
        ({"a_key_of_a_plugin": 7}, "a_key_of_a_plugin", "unknown"),
        ({"parameters_frozen": 7}, "parameters_frozen", "unknown"),
    ],
)
def test_each_difference_from_the_reference_is_named_with_what_it_changes(change, key, kind):
    assert difference_kinds(change) == {key: kind}


def test_a_setting_that_only_one_strategy_has_is_no_difference():
    assert difference_kinds({"units": 5, "mesh": {"dp_shard": 2}}) == {}


def test_lists_and_tuples_are_the_same_in_a_record_and_in_a_live_engine():
    assert difference_kinds({"optimizer__betas": [0.9, 0.95]}) == {}


def test_the_reference_is_single_and_the_others_reduce_as_the_first_that_does():
    single = record(case("single", 1), world_size=1, dtypes__reduce=None)
    (comparison,) = run_of(record(DDP), record(FSDP, dtypes__reduce="bf16"), single).parity.groups
    assert comparison.reference.case == single.case
    found = {row.case.label: comparison.findings(row) for row in comparison.cases}
    assert [each.key for each in found["fsdp"]] == ["dtypes.reduce"]
    assert not found["ddp"]
    assert not found["single"]


def test_a_setting_that_only_one_of_them_tells_is_no_silent_agreement():
    quiet = record(FSDP)
    del quiet.effective["clip_grad_norm"]
    found = run_of(record(DDP), quiet)
    (difference,) = found.parity.findings[FSDP.id]
    assert (difference.key, difference.found) == ("clip_grad_norm", None)
    (sentence,) = found.parity.footnotes.sentences.values()
    assert sentence.startswith("Not known to be the same work: clip_grad_norm = ")


def test_a_case_that_tells_nothing_has_one_finding_and_is_no_reference():
    silent = measured(DDP)
    (comparison,) = run_of(silent, record(FSDP)).parity.groups
    assert comparison.reference.case == FSDP
    assert [each.key for each in comparison.differences[DDP.id]] == ["effective"]


def test_where_nobody_tells_anything_nothing_is_marked_and_strict_parity_is_not_content():
    silent = run_of(measured(DDP), measured(FSDP))
    assert silent.parity.footnotes.marks == {}
    assert silent.parity.work_changes() == {"no case reported its effective settings": [DDP.name, FSDP.name]}
    (note,) = table(silent).notes
    assert note.startswith("Unknown")


@pytest.mark.parametrize(
    "change",
    [
        {"precision": PrecisionConfig(compute="bf16")},
        {"batch": Batch(16, 8, 1)},
        {"optimizer": OptimizerConfig(lr=0.1)},
        {"activation_checkpointing": "full"},
        {"seed": 2},
    ],
)
def test_what_the_suite_asks_for_on_purpose_is_another_comparison(change):
    found = run_of(record(DDP), record(case("fsdp", **change), clip_grad_norm=1.0)).parity.groups
    assert [len(comparison.cases) for comparison in found] == [1, 1]
    assert not any(comparison.differences[row.case.id] for comparison in found for row in comparison.cases)


def test_the_same_samples_cut_up_otherwise_are_one_comparison():
    accumulated = record(
        case("fsdp", batch=Batch(8, 2, 2)), micro_batch_size=2, gradient_accumulation_steps=2
    )
    reference = record(DDP, micro_batch_size=4, gradient_accumulation_steps=1)
    (comparison,) = run_of(reference, accumulated).parity.groups
    assert {each.kind for each in comparison.differences[accumulated.case_id]} == {"strategy"}


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"optimizer__lr": 0.1}, "work"),
        ({"engine": "other"}, "work"),
        ({"environment": {"threads": 2, "tf32": False}}, "speed"),
        ({"a_key_of_a_plugin": 7}, "unknown"),
    ],
)
def test_trials_of_one_case_that_differ_are_told_with_both_values(change, kind):
    (comparison,) = run_of(record(DDP), record(DDP, round_=1, **change)).parity.groups
    (found,) = comparison.differences[DDP.id]
    assert (found.kind, found.between) == (kind, "trials")
    assert f"{found.expected} in one trial and {found.found} in another" in str(found)


def test_a_finding_stands_beside_every_number_that_it_touches_in_terminal_and_page():
    bad = {"optimizer__kernel": "<b>mine</b>\x1b[31m\n\u202e"}
    zero = case("zero2")
    records = [record(DDP), record(FSDP, **bad), record(zero, **bad, clip_grad_norm=1.0)]
    run = run_of(*records)
    shown = overview_text(run)
    marked = [line for line in shown.splitlines() if line.startswith(("ddp", "fsdp", "zero2"))]
    assert [line.split()[0] for line in marked] == ["ddp", "fsdp[a]", "zero2[a,b]"]
    assert "[a] Not the same work: optimizer.kernel" in shown
    headline = "its lead over fsdp[a] may be noise, because both have only one valid trial"
    assert headline in " ".join(shown.split()), "in words too"
    html = page.render(run)
    assert html.count('href="#not-the-same-work"') == 4, "in the table of the cases and in that of the values"
    for text in (shown, html, table(run_of(*records)).to_text(80)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<b>mine" not in html


def test_more_findings_than_a_label_has_room_for_are_a_range_and_no_line_becomes_too_wide():
    many = {f"optimizer__of_a_plugin_{i}": i for i in range(40)}
    odd = {f"optimizer__of_a_plugin_{i}": i for i in range(0, 40, 2)}
    zero = case("zero3+offload-params")
    records = [record(DDP), record(FSDP, **many), record(zero, **odd)]
    shown = overview_text(run_of(*records))
    assert "fsdp[a-an] " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_nobody_classified_is_one_footnote_and_no_breach_of_strict_parity():
    foreign = run_of(record(DDP), record(FSDP, shards=4, depth=2))
    assert foreign.parity.footnotes.sentences == {
        "[a]": (
            "Whether the work is the same is unknown, because these settings differ and are unclassified: "
            "depth, shards."
        )
    }
    assert foreign.parity.work_changes() == {}


def test_strict_parity_names_a_difference_once_with_all_its_cases():
    zero = case("zero2")
    unfair = run_of(record(DDP), *(record(of, clip_grad_norm=1.0, my_key=1) for of in (FSDP, zero)))
    assert unfair.parity.work_changes() == {
        "clip_grad_norm = 1.0, the reference has none: different gradient clipping": [FSDP.name, zero.name]
    }


def test_the_view_says_in_a_sentence_when_all_did_the_same_work():
    same = table(run_of(record(DDP), record(FSDP, engine="FSDPModule"), record(case("zero2"))))
    assert len(same.notes) == 1
    assert same.notes[0].startswith("All ") and "same work" in same.notes[0]
    assert {row.value("kind") for row in same.rows} == {"strategy"}
    assert {row.value("reference_case") for row in same.rows} == {DDP.name}


def test_the_view_tells_differences_of_the_work_first_and_names_every_case_that_has_them():
    zero = case("zero2")
    changes = {"clip_grad_norm": 1.0, "engine": "other"}
    other = table(run_of(record(DDP), record(FSDP, **changes), record(zero, **changes)))
    assert [row.value("kind") for row in other.rows] == ["work", "strategy"]
    assert other.records()[0] == {
        "setting": "clip_grad_norm",
        "reference_case": DDP.name,
        "kind": "work",
        "reference": "none",
        "found": "1.0",
        "cases": "fsdp, zero2",
    }
    assert other.notes[0] == f"2 of the 3 cases differ from the work of {DDP.name}."
    assert other.notes[1].endswith("(fsdp, zero2).")


SUITE = """
workload: {transformer: {dim: 32, depth: 1, heads: 2, kv_heads: 2, ffn_dim: 64, seq_len: 16}}
batch: {global_batch_size: 4}
measure: {warmup: 1, steps: 2, trials: 1}
world_sizes: [2]
"""
EVERY = {"single", "ddp", "fsdp", "fsdp1", "zero0", "zero1", "zero2", "zero3"}


@pytest.mark.train
def test_strategies_of_one_suite_do_the_same_work_and_strict_parity_agrees(matrix, distbench):
    finished = matrix("fp32")
    strict = distbench("run", "--resume", str(finished.folder), "--strict-parity", "--quiet")
    assert strict.returncode == 0, strict.stderr
    assert all(case["parity"] == [] for case in finished.cases.values())
    records = [Finished.read(file) for file in finished.folder.glob("trials/*/0/record.json")]
    effective = {each["case"]["label"]: each["effective"] for each in records if each["effective"]}
    assert effective.keys() >= EVERY
    for told in effective.values():
        assert told["optimizer"]["steps"] == 1, "one of warm-up; DeepSpeed's own first step doesn't count"
        assert told["global_batch_size"] == 8
        assert told["dtypes"]["gradients"] == "fp32"
        assert told["trainable_tensors"] == 2 + 9 * 4, "of the embedding, the norm and four layers"
    assert len({each["environment"]["seed"] for each in records if each["effective"]}) == 1


@pytest.mark.train
@pytest.mark.deep
def test_another_kernel_is_a_finding_and_strict_parity_makes_it_an_error_also_when_a_run_is_resumed(
    run_suite, distbench
):
    finished = run_suite(
        SUITE + "strategies: [ddp, {zero: {stage: 1, optimizer_kernel: deepspeed}}]\n", "--strict-parity"
    )
    assert finished.code == 1
    assert {case["status"] for case in finished.cases.values()} == {"measured"}, "its numbers are kept"
    assert "optimizer.kernel = DeepSpeedCPUAdam, the reference has fused" in finished.errors
    (found,) = [case["parity"] for case in finished.cases.values() if case["parity"]]
    assert {each["key"] for each in found} == {"optimizer.class", "optimizer.kernel"}
    again = ("run", "--resume", str(finished.folder), "--json", "--quiet")
    assert distbench(*again).returncode == 0
    strict = distbench(*again, "--strict-parity")
    assert strict.returncode == 1
    assert "--strict-parity: optimizer.kernel" in strict.stderr
    assert json.loads(strict.stdout)["cases"], "what is told on stderr does not get into the JSON"


@pytest.mark.train
def test_only_deepspeeds_stage_0_adds_up_gradients_in_16_bits_and_that_is_a_finding(matrix):
    found = {row["label"]: [each["key"] for each in row["parity"]] for row in matrix("bf16").cases.values()}
    same = ("single", "ddp", "fsdp", "fsdp1", "tp+sp", "zero1", "zero2", "zero3")
    assert found == {**{label: [] for label in same}, "zero0": ["dtypes.gradients"]}


@pytest.mark.train
@pytest.mark.deep
def test_deepspeeds_own_adam_begins_at_step_0_in_16_bits_too(run_suite):
    strategies = "strategies: [{zero: {stage: [0, 1], optimizer_kernel: deepspeed}}]\n"
    finished = run_suite(SUITE + "precision: bf16\n" + strategies)
    records = [finished.record(f"zero{stage}+ds-adam") for stage in (0, 1)]
    assert [each["effective"]["optimizer"]["steps"] for each in records] == [1, 1]
    first, second = (each["values"]["final_loss"] for each in records)
    assert first == pytest.approx(second, rel=1e-4)


@pytest.fixture(scope="module")
def tampered_run(tmp_path_factory) -> Finished:
    hows = "[compresses, twice, attention, silent, foreign, scheduled]"
    text = SUITE + f"strategies: [ddp, {{tampered: {{how: {hows}}}}}]\n"
    return run_in(tmp_path_factory.mktemp("tampered"), text, "--strict-parity")


def outcome(finished: Finished, label: str) -> dict[str, Any]:
    return next(row for row in finished.cases.values() if row["label"] == label)


@pytest.mark.train
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("compresses", "dtypes.reduce: expected 'fp32', found 'fp16'"),
        ("silent", "clip_grad_norm: expected None, but the engine did not report it"),
        ("scheduled", "optimizer.next_lr: expected 0.001, found "),
    ],
)
def test_what_differs_from_what_was_asked_for_has_no_numbers(tampered_run, how, told):
    row = outcome(tampered_run, f"tampered-{how}")
    assert row["status"] == "mismatch"
    assert row["values"] == {}
    assert told in row["reason"]


@pytest.mark.train
@pytest.mark.parametrize(
    ("how", "key", "kind"),
    [
        ("twice", "optimizer.steps", "work"),
        ("attention", "process.attention", "work"),
        ("foreign", "shards_of_mine", "unknown"),
    ],
)
def test_what_nobody_asked_about_is_timed_and_found_beside_the_reference(tampered_run, how, key, kind):
    row = outcome(tampered_run, f"tampered-{how}")
    assert row["status"] == "measured"
    assert [(each["key"], each["kind"]) for each in row["parity"]] == [(key, kind)]
    assert (f"--strict-parity: {key}" in tampered_run.errors) == (kind == "work")
