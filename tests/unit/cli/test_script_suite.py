"""``distbench init --from RUN``: a suite with the training of a measured script and its alternatives."""

from pathlib import Path

import pytest

from distbench.core.case import ObservedOptimizer, PluginChoice
from distbench.core.machine import Machine
from distbench.plan import make_plan
from distbench.record import Status
from distbench.suite import load_suite
from support.script_runs import script_run

PACKAGES = ("torch", "deepspeed", "transformers")


def test_a_model_of_transformers_is_carried_over_with_all_settings(command, tmp_path):
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), "--from", str(script_run(tmp_path / "runs")))
    assert code == 0, errors
    # what is left out is said, in the suite, too
    for left in ("its data", "dropout", "schedule of the learning rate"):
        assert left in errors
        assert left in file.read_text()
    suite = load_suite(file)
    work = suite.work
    assert work["workload"] == {
        "huggingface": {
            "model_type": "gpt2",
            "task": "causal-lm",
            "vocab_size": 96,
            "seq_len": 64,
            "config": {"n_layer": 2},
        }
    }
    assert work["batch"] == {"global_batch_size": 16, "micro_batch_size": 4}
    assert work["optimizer"] == {
        "name": "adamw",
        "lr": 3e-4,
        "weight_decay": 0.1,
        "clip_grad_norm": 1.0,
        "kernel": "foreach",
    }
    assert work["precision"] == {"compute": "bf16"}
    assert suite.world_sizes == (2,)
    machine = Machine("cuda", 2, dict.fromkeys(PACKAGES, "9"), has_libaio=False, has_compiler=True)
    planned = make_plan(suite, machine)
    # its own first
    assert [each.case.label for each in planned.cases] == ["yours", "ddp", "fsdp", "zero3"]
    assert {each.case.world_size for each in planned.cases} == {2}
    assert not [each for each in planned.cases if each.problem]
    assert "train.py --lr 3e-4" in file.read_text()
    assert '{"zero": {"stage": 2, "label": "yours"}} # as it is' in file.read_text()


def test_a_model_of_ones_own_is_asked_for_and_taken(command, tmp_path):
    file, folder = tmp_path / "mine.yaml", str(script_run(tmp_path / "runs", model=None))
    code, _, errors = command("init", str(file), "--from", folder)
    assert code == 2
    assert "--model package.module:callable" in errors
    assert not file.exists()
    assert command("init", str(file), "--from", folder, "--model", "tiny")[0] == 0
    assert load_suite(file).work["workload"] == {"transformer": {"preset": "tiny", "seq_len": 64}}


def test_its_dataset_is_taken_if_it_is_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scriptrows.py").write_text("def rows():\n    return [([*range(64)], [*range(1, 65)])] * 64\n")
    words = ("--from", str(script_run(tmp_path / "runs")), "--data", "scriptrows:rows")
    code, _, errors = command("init", "mine.yaml", *words)
    assert code == 0, errors
    assert "left out: its first weights" in errors
    assert "its data" not in errors
    work = load_suite(Path("mine.yaml")).work
    assert work["data"] == {"user": {"dataset": "scriptrows:rows"}}
    assert work["workload"]["huggingface"]["seq_len"] == 64


def test_what_no_suite_has_is_named(command, tmp_path):
    folder = script_run(
        tmp_path / "runs",
        strategy=PluginChoice("script"),
        optimizer=ObservedOptimizer(name="Rprop", lr=0.1),
    )
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), "--from", str(folder))
    assert code == 0, errors
    assert "its strategy: no wrapper is known" in errors
    assert "its optimizer Rprop" in errors
    assert "as it is" not in file.read_text()
    assert load_suite(file).work["optimizer"]["name"] == "adamw"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--goal", "memory"], "--goal: leave it out beside --from"),
        (["--devices", "2"], "--devices: leave it out beside --from"),
        (["--model", "nonesuch"], "not a preset of the transformer"),
    ],
)
def test_options_that_do_not_fit_are_refused(command, tmp_path, words, said):
    file, folder = tmp_path / "mine.yaml", str(script_run(tmp_path / "runs"))
    code, _, errors = command("init", str(file), "--from", folder, *words)
    assert (code, file.exists()) == (2, False)
    assert said in errors


def test_runs_without_a_measured_script_are_refused(command, tmp_path):
    file = tmp_path / "mine.yaml"
    sample = Path(__file__).parents[3] / "reports" / "sample"
    crashed = script_run(tmp_path / "crashed", status=Status.CRASHED)
    unknown = script_run(tmp_path / "unknown", model={"class": "BertForTokenClassification", "config": {}})
    for folder, said in (
        (sample, "copy its suite"),
        (crashed, "has no measured step"),
        (unknown, "no task for the model BertForTokenClassification"),
        (tmp_path / "nothing", "no such run"),
    ):
        code, _, errors = command("init", str(file), "--from", str(folder))
        assert (code, file.exists()) == (2, False), folder
        assert said in errors
