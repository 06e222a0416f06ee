"""The TOML of torchtitan becomes a suite, and what adopt writes of a case becomes that case again."""

import tomllib

import pytest

from distbench.adopt import ExportedCase, export_case, supported_formats
from distbench.core.errors import UsageError
from distbench.suite.configurations.files import read_configuration
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
    found = read_torchtitan(tomllib.loads(export_case("torchtitan-toml", case, {}).files["torchtitan.toml"]))
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
    # of a pipeline the file does not tell the tokens, by which torchtitan's numbers are larger
    assert [each.key for each in found.left_out] == ["training.max_norm"] * (case.strategy.name == "pp")
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
    assert (found.batch, found.world_size) == ({"micro_batch_size": 2, "per_device_batch_size": 1}, None)
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
