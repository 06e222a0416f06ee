"""From the files that tutorials have to a report, with one command, on two ranks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.suite import load_suite
from support.runs import call

STARTS = Path(__file__).parents[1] / "starts"
QUICK = ("measure={warmup: 1, steps: 2, trials: 1, profile_steps: 1}", "check=false")
Cases = dict[str, dict[str, Any]]


def sets(*settings: str) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def report(folder: Path, name: str, *settings: str, model: str = "small:Small") -> Cases:
    """Cases by label of the one command that begins with the file *name*, on ranks of the session."""
    words = ("run", str(folder / "mine.yaml"), "--from", str(STARTS / name), "--model", model)
    more = ("--world-sizes", "2", "--out", str(folder / "out"), "--json", "--quiet")
    done = call(*words, *more, *sets(*QUICK, *settings, "launcher=kept"))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert Path(shown["report"]).is_file()
    assert {case["case"].split("/")[1] for case in shown["cases"]} == {"ws2"}
    return {case["case"].partition("/")[0]: case for case in shown["cases"]}


def test_zero_2_in_fp16_with_offload_is_compared_with_what_a_cpu_can_do(tmp_path):
    cases = report(tmp_path, "ds_config.json")
    assert {label: case["status"] for label, case in cases.items()} == {
        "yours": "unsupported",
        "ddp": "measured",
        "fsdp": "measured",
        "zero2": "unsupported",
        "zero3": "unsupported",
    }
    assert cases["yours"]["reason"] == "DeepSpeed's CPU accelerator does not support fp16"
    assert '"offload_optimizer": "cpu"' in (tmp_path / "mine.yaml").read_text()
    work = load_suite(tmp_path / "mine.yaml").work
    assert work["precision"]["loss_scale"] == "dynamic"
    assert (work["optimizer"]["schedule"], work["optimizer"]["total_steps"]) == ("linear", 10_000)
    # 32 samples in micro-batches of 8, of which a rank takes two
    assert work["batch"] == {"global_batch_size": 32, "micro_batch_size": 8}


@pytest.mark.deep
def test_zero_2_with_offload_is_measured_in_a_precision_that_a_cpu_has(tmp_path):
    cases = report(tmp_path, "ds_config.json", "precision=fp32")
    assert {case["status"] for case in cases.values()} == {"measured"}
    assert [*cases] == ["yours", "ddp", "fsdp", "zero2", "zero3"]


def test_fsdp_of_the_trainer_is_compared_with_its_alternatives(tmp_path):
    cases = report(tmp_path, "training_arguments.json")
    reduces = "precision.reduce = bf16: DDP's communication hook for bf16 needs CUDA and NCCL"
    assert {label: case["status"] for label, case in cases.items()} == {
        "yours": "measured",
        "ddp": "unsupported",
        "zero2": "measured",
        "zero3": "measured",
    }
    assert cases["ddp"]["reason"] == reduces


@pytest.mark.deep
def test_fsdp_of_accelerate_is_compared_with_its_alternatives(tmp_path):
    cases = report(tmp_path, "accelerate.yaml", model="tiny")
    assert [*cases] == ["yours", "ddp", "fsdp", "zero2", "zero3"]
    assert {case["status"] for case in cases.values()} == {"measured"}


@pytest.mark.deep
def test_fsdp_of_accelerate_trains_as_its_alternatives_do(tmp_path):
    cases = report(tmp_path, "accelerate.yaml", "check={steps: 2, perturbed: 4, fp64: false}")
    assert {case["equivalence"]["verdict"] for case in cases.values()} <= {EQUIVALENT, ROUNDING}
    assert len(cases) == 5


def test_model_and_dataset_of_a_script_for_ddp_are_one_command(tmp_path):
    """As a shell in the folder of the script starts it."""
    shutil.copy(STARTS / "train_ddp.py", tmp_path)
    named = ("--model", "train_ddp:CharacterModel", "--data", "train_ddp:Characters")
    only = ("--world-sizes", "2", "--only", "ddp*", "--only", "fsdp/*")
    done = subprocess.run(
        [sys.executable, "-m", "distbench", "run", *named, *only, *sets(*QUICK), "--json", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (tmp_path / shown["report"]).is_file()
    assert {case["case"]: case["status"] for case in shown["cases"]} == {
        "ddp/ws2/mb8/fp32": "measured",
        "fsdp/ws2/mb8/fp32": "measured",
    }
    work = load_suite(tmp_path / "suite.yaml").work
    # 48 is the length of the rows: the model takes any
    assert work["workload"]["user"] == {
        "model": "train_ddp:CharacterModel",
        "kind": "tokens",
        "length": 48,
        "classes": 128,
    }
    assert work["data"] == {"user": {"dataset": "train_ddp:Characters"}}
