"""The TOML of torchtitan becomes a suite, and what adopt writes of a case becomes that case again."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from distbench.adopt import ExportedCase, export_case, supported_formats
from distbench.core import registry
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.plan import PlannedCase, make_plan
from distbench.suite import load_suite
from distbench.suite.configurations.files import read_configuration
from distbench.suite.configurations.settings import DescribedTraining
from distbench.suite.configurations.torchtitan_toml import read_torchtitan
from support.adopted_cases import ALL

WRITTEN = [
    name for name, case in ALL.items() if "torchtitan-toml" in supported_formats(ExportedCase.of(case, {}))
]
FILE = """
[model]
name = "llama3"
flavor = "8B"
[optimizer]
lr = 3e-4
[training]
local_batch_size = 2
seq_len = 1024
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[lr_scheduler]
warmup_steps = 100
[fancy]
x = 1
"""


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_for_a_case_is_that_case_again(name):
    case = ALL[name]
    written = tomllib.loads(export_case("torchtitan-toml", case, {}).files["torchtitan.toml"])
    # which the file asks its user to add
    length = registry.create_plugin("workloads", case.workload).shape.sample_length
    found = read_torchtitan(written | {"training": written["training"] | {"seq_len": length}})
    assert (found.strategy.name, found.world_size) == (case.strategy.name, case.world_size)
    assert found.batch == {
        "global_batch_size": case.batch.global_batch_size,
        "micro_batch_size": case.batch.micro_batch_size,
    }
    assert {key: getattr(case.precision, key) for key in found.precision} == found.precision
    assert found.activation_checkpointing == case.activation_checkpointing
    assert found.compile == (case.compile != "none")
    spec = {key: getattr(case.optimizer, key) for key in found.optimizer}
    assert found.optimizer.pop("betas") == list(spec.pop("betas"))
    assert found.optimizer == pytest.approx(spec)
    is_cast = case.strategy.name == "ddp" and case.precision.compute == "bf16"
    assert [each.key for each in found.left_out] == [
        *(["training.mixed_precision_param"] if is_cast else []),
        "training.seq_len",
    ]
    kept = ("schedule", "micro_batches", "implementation", "sharded", "sequence_parallel", "cpu_offload")
    for key in kept:
        usual = {"micro_batches": 4, "schedule": "1F1B"}.get(key, False)
        options = case.strategy.options
        assert found.strategy.options.get(key, usual) == options.get(key, usual), key
    if "mesh" in case.strategy.options:
        assert found.strategy.options["mesh"] == case.strategy.options["mesh"]


def test_a_file_is_read_with_the_defaults_of_torchtitan(tmp_path, command):
    file = tmp_path / "llama.toml"
    file.write_text(FILE)
    found = read_configuration(file)
    assert (found.strategy.name, found.strategy.options) == (
        "fsdp",
        {"mesh": {"tp": 2}, "sequence_parallel": True, "loss_parallel": True},
    )
    # two devices share the rows of one
    assert (found.batch, found.world_size) == ({"per_device_batch_size": 1}, None)
    assert found.precision == {"compute": "bf16", "reduce": "fp32", "master": "fp32"}
    assert found.optimizer == {
        "name": "adamw",
        "lr": 3e-4,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "kernel": "fused",
        "clip_grad_norm": 1.0,
        "schedule": "linear",
        "warmup_steps": 100,
        "total_steps": 1000,
        "final_lr_fraction": 0.0,
    }
    assert {each.key for each in found.left_out} == {
        *("model.name", "model.flavor", "training.seq_len", "training.dataset", "fancy"),
    }
    suite = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(suite), "--from", str(file), "--model", "tiny")
    assert code == 0, errors
    assert '"label": "yours"' in suite.read_text()


def test_no_choice_of_a_file_is_replaced_in_silence():
    found = read_torchtitan(
        {
            "training": {"local_batch_size": "two", "mixed_precision_param": "float16", "max_norm": 0.5},
            "optimizer": {"name": "Lion", "implementation": "fast", "lr": "x"},
            "parallelism": {"fsdp_reshard_after_forward": "maybe", "expert_parallel_degree": 4},
            "activation_checkpoint": {"mode": "memory_budget"},
            "lr_scheduler": {"decay_type": "sqrt"},
            "model": {"converters": ["quantize.linear.mx"]},
            "compile": {"enable": True, "components": ["model", "loss"]},
        }
    )
    assert {each.key: each.changes for each in found.left_out} == {
        "training.local_batch_size": "training",
        "training.mixed_precision_param": "training",
        "optimizer.name": "training",
        "optimizer.implementation": "speed",
        "optimizer.lr": "training",
        "parallelism.fsdp_reshard_after_forward": "speed",
        "parallelism.expert_parallel_degree": "training",
        "activation_checkpoint.mode": "memory",
        "lr_scheduler.decay_type": "training",
        "model.converters": "training",
        "compile.components": "speed",
    }
    assert found.optimizer["clip_grad_norm"] == 0.5


def test_python_is_not_run_and_broken_toml_is_named(tmp_path):
    for name, text, why in (
        ("config.py", "x = 1", "runs no Python"),
        ("x.toml", "a = [", "not TOML"),
        ("y.toml", "[epochs]\nn = 1", "no configuration of DeepSpeed"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=why):
            read_configuration(tmp_path / name)


def read(text: str) -> DescribedTraining:
    return read_torchtitan({"training": {}} | tomllib.loads(text))


def left(found: DescribedTraining, section: str = "") -> dict[str, str]:
    # the default of torchtitan, which no suite has
    usual = "activation_checkpoint.selective_ac_option"
    keys = {each.key: each.reason for each in found.left_out if each.key != usual}
    return {key: reason for key, reason in keys.items() if key.startswith(section)}


def planned(text: str, folder: Path, command: Any) -> dict[tuple[str, int], PlannedCase]:
    """Cases that run of the suite that is drafted from *text*."""
    (folder / "titan.toml").write_text(text)
    suite = folder / "mine.yaml"
    code, _, errors = command("init", str(suite), "--from", str(folder / "titan.toml"), "--model", "tiny")
    assert code == 0, errors
    machine = Machine("cuda", 8, {"torch": "9", "deepspeed": "9"}, has_libaio=True, has_compiler=True)
    cases = make_plan(load_suite(suite), machine).cases
    return {(each.case.label, each.case.world_size): each for each in cases if not each.problem}


@pytest.mark.parametrize(
    ("parallelism", "local", "ranks", "whole"),
    [
        ("tensor_parallel_degree = 2", 2, 8, 8),
        ("context_parallel_degree = 2", 2, 4, 4),
        ("tensor_parallel_degree = 2\ndata_parallel_shard_degree = 2", 2, 4, 4),
        ("pipeline_parallel_degree = 2", 8, 4, 16),
        ("context_parallel_degree = 2\ntensor_parallel_degree = 2", 4, 8, 16),
        ("tensor_parallel_degree = 2\ndata_parallel_shard_degree = 1", 4, 2, 4),
    ],
)
def test_devices_that_share_rows_have_the_batch_of_the_file(
    parallelism, local, ranks, whole, tmp_path, command
):
    text = f"[training]\nlocal_batch_size = {local}\n[parallelism]\n{parallelism}\n"
    cases = planned(text, tmp_path, command)
    batch = cases["yours", ranks].case.batch
    assert (batch.global_batch_size, batch.micro_batch_size) == (whole, local)
    assert batch.gradient_accumulation_steps == 1
    # the same rows, with which the alternatives run too
    assert cases["fsdp", ranks].case.batch.global_batch_size == whole


def test_a_batch_that_devices_cannot_share_evenly_is_named(tmp_path, command):
    text = "[training]\nlocal_batch_size = 1\n[parallelism]\ntensor_parallel_degree = 2\n"
    found = read(text)
    assert found.batch == {"per_device_batch_size": 1}
    said = "1 for 2 devices with the same samples: the suite has 1 for each device"
    assert left(found) == {"training.local_batch_size": said}
    larger = read(text.replace("= 1", "= 5"))
    assert (larger.batch, len(left(larger))) == ({"per_device_batch_size": 2}, 1)
    alone = text + "data_parallel_shard_degree = 1\n"
    assert read(alone).batch == {"global_batch_size": 1}
    batch = planned(alone, tmp_path, command)["yours", 2].case.batch
    assert (batch.global_batch_size, batch.micro_batch_size) == (1, 1)


def test_a_pipeline_keeps_its_stages_beside_an_open_number_of_shards(tmp_path, command):
    text = "[training]\n[parallelism]\npipeline_parallel_degree = 2\ntensor_parallel_degree = 2\n"
    found = read(text)
    assert found.strategy.options["mesh"] == {"dp_shard": 2, "tp": 2}
    assert (found.world_size, found.batch) == (8, {"global_batch_size": 16})
    assert found.precision["compute"] == "bf16"
    (said,) = left(found).values()
    assert said.startswith("-1: a suite with a pipeline") and "2 on 8 devices" in said
    assert planned(text, tmp_path, command).keys() >= {("yours", 8), ("fsdp", 8)}
    given = read(text + "data_parallel_shard_degree = 4\n")
    assert (given.strategy.options["mesh"], given.world_size) == ({"dp_shard": 4, "tp": 2}, 16)
    assert not left(given)


@pytest.mark.parametrize(
    ("parallelism", "name", "compute", "said"),
    [
        ("tensor_parallel_degree = 2\ndata_parallel_shard_degree = 1", "tp", "fp32", "parallelism in fp32"),
        ("pipeline_parallel_degree = 2\ndata_parallel_shard_degree = 1", "pp", "fp32", "parallelism in fp32"),
        ("data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1", "ddp", "bf16", "autocast"),
        ("data_parallel_shard_degree = 1", "single", "bf16", "autocast"),
        ("context_parallel_degree = 2\ndata_parallel_shard_degree = 1", "cp", "bf16", ""),
        ("tensor_parallel_degree = 2", "fsdp", "bf16", ""),
    ],
)
def test_without_fsdp_the_precision_is_that_of_torchtitan(
    parallelism, name, compute, said, tmp_path, command
):
    text = f"[parallelism]\n{parallelism}\n"
    found = read(text)
    assert found.strategy.name == name
    assert found.precision == {"compute": compute, "reduce": "fp32", "master": "fp32"}
    reasons = left(found, "training.mixed_precision_param")
    assert len(reasons) == bool(said)
    assert all(said in reason for reason in reasons.values())
    low = read(text + "[training]\ndtype = 'bfloat16'\n")
    assert (low.precision["compute"], low.precision["master"]) == ("bf16", "bf16")
    assert not left(low)
    runs = planned("[training]\ndtype = 'bfloat16'\n" + text, tmp_path, command)
    assert [case for label, case in runs if label == "yours"]


@pytest.mark.parametrize(
    ("scheduler", "found", "keys"),
    [
        ("", {"warmup_steps": 100}, []),
        ("decay_ratio = 0.5", {"warmup_steps": 100}, []),
        ("warmup_steps = 20\ndecay_ratio = 0.0", {"warmup_steps": 20}, []),
        ("warmup_steps = 20\ndecay_ratio = 0.5\ndecay_type = 'sqrt'", {"warmup_steps": 20}, ["decay_type"]),
        (
            "warmup_steps = 60\ndecay_ratio = 0.5",
            {"schedule": "linear", "warmup_steps": 60, "total_steps": 100, "final_lr_fraction": 0.0},
            [],
        ),
        (
            "total_steps = 1000",
            {"schedule": "linear", "warmup_steps": 200, "total_steps": 1000, "final_lr_fraction": 0.0},
            [],
        ),
    ],
)
def test_a_warm_up_ends_with_the_steps(scheduler, found, keys):
    training = read(f"[training]\nsteps = 100\n[lr_scheduler]\n{scheduler}\n")
    names = ("schedule", "warmup_steps", "total_steps", "final_lr_fraction", "decay_steps")
    assert {key: training.optimizer[key] for key in names if key in training.optimizer} == found
    assert [*left(training, "lr_scheduler")] == [f"lr_scheduler.{key}" for key in keys]


def test_layers_that_only_torchtitan_converts_to_float8_are_named():
    on = "[model]\nconverters = ['quantize.linear.float8']\n[quantize.linear.float8]\n"
    section = "quantize.linear.float8."
    same = read(on + "filter_fqns = ['output']\nenable_fsdp_float8_all_gather = false\n")
    assert (same.precision["float8"], left(same)) == ("tensorwise", {})
    assert [*left(read(on))] == [f"{section}filter_fqns"]
    other = read(on + "filter_fqns = ['output', 'wq']\nenable_fsdp_float8_all_gather = true\n")
    assert {each.key: each.changes for each in other.left_out if each.key.startswith(section)} == {
        f"{section}filter_fqns": "training",
        f"{section}enable_fsdp_float8_all_gather": "speed",
    }
    whole = read(on + "filter_fqns = ['output']\n[training]\nmixed_precision_param = 'float32'\n")
    assert "float8" not in whole.precision
    assert [*left(whole)] == ["model.converters"]


@pytest.mark.parametrize(
    ("text", "norm", "is_named"),
    [("'1.0'", 1.0, True), ("true", 1.0, True), ("0", None, True), ("inf", None, False), ("2", 2.0, False)],
)
def test_a_norm_is_a_number_or_named(text, norm, is_named):
    found = read(f"[training]\nmax_norm = {text}\n")
    assert found.optimizer.get("clip_grad_norm") == norm
    assert [*left(found)] == ["training.max_norm"] * is_named


@pytest.mark.parametrize(
    ("text", "is_compiled", "is_named"),
    [
        ("enable = true", True, True),
        ("enable = true\ncomponents = ['model']", True, False),
        ("enable = true\ncomponents = ['loss']", False, True),
        ("components = ['loss']", False, False),
    ],
)
def test_only_a_model_that_torchtitan_compiles_is_compiled(text, is_compiled, is_named):
    found = read(f"[compile]\n{text}\n")
    assert found.compile is is_compiled
    assert [*left(found)] == ["compile.components"] * is_named


@pytest.mark.parametrize(
    ("named", "schedule", "is_named"),
    [("gpipe", "GPipe", False), ("interleaved1f1b", "Interleaved1F1B", False), ("Mine", "1F1B", True)],
)
def test_a_schedule_is_found_as_torch_finds_it(named, schedule, is_named):
    shape = "pipeline_parallel_degree = 2\ndata_parallel_shard_degree = 2"
    found = read(f"[parallelism]\n{shape}\npipeline_parallel_schedule = '{named}'\n")
    assert found.strategy.options["schedule"] == schedule
    assert [*left(found)] == ["parallelism.pipeline_parallel_schedule"] * is_named


def test_sums_of_a_pipeline_are_those_of_2048_tokens_if_no_file_says_otherwise():
    shape = "[parallelism]\npipeline_parallel_degree = 2\ndata_parallel_shard_degree = 1\n"
    for said, length in (("", 2048), ("seq_len = 512\n", 512)):
        found = read(f"[training]\nlocal_batch_size = 4\nmax_norm = 8192.0\n{said}{shape}")
        assert found.optimizer["clip_grad_norm"] == 8192 / (length * 4)
        assert "training.max_norm" not in left(found)
