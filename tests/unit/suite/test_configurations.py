"""Configuration files of other frameworks become suites; what no suite has is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from distbench.adopt import export_case
from distbench.cli.configuration_suite import draft_from_file
from distbench.core.case import Case
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.plan import make_plan
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import configuration, optional_sizes
from distbench.suite import load_suite
from distbench.suite.configurations.files import read_configuration
from distbench.suite.configurations.settings import DescribedTraining

BOTH = ["native", "accelerate"]
OFFLOADED = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "steps_per_print": 10,
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "hysteresis": 1},
    "communication_data_type": "fp32",
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": 3e8,
        "allgather_bucket_size": 2e8,
    },
    "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.9, 0.98], "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 500, "warmup_num_steps": 20, "warmup_type": "linear"},
    },
}
SHARDED = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 5e8, "zero_quantized_weights": True},
}


def read(folder: Path, settings: Any, name: str = "ds.json") -> DescribedTraining:
    file = folder / name
    file.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return read_configuration(file)


def left(training: DescribedTraining) -> dict[str, str]:
    return {each.key: each.changes for each in training.left_out}


def test_a_file_of_deepspeed_is_carried_over(tmp_path):
    found = read(tmp_path, OFFLOADED)
    assert (found.strategy.name, found.strategy.options) == (
        "zero",
        {
            "stage": 2,
            "offload_optimizer": "cpu",
            "overlap_comm": True,
            "reduce_bucket_size": 300_000_000,
            "allgather_bucket_size": 200_000_000,
        },
    )
    assert found.batch == {"global_batch_size": 16, "micro_batch_size": 2}
    # 16 samples in micro-batches of 2, of which a rank takes 4
    assert found.world_size == 2
    assert found.precision == {
        "compute": "fp16",
        "reduce": "fp32",
        "loss_scale": "dynamic",
        "initial_scale_power": 12,
    }
    # DeepSpeed's Adam decouples the weight decay
    assert found.optimizer == {
        "name": "adamw",
        "lr": 3e-4,
        "weight_decay": 0.1,
        "betas": [0.9, 0.98],
        "clip_grad_norm": 0.5,
        "schedule": "linear",
        "warmup_steps": 20,
        "total_steps": 500,
    }
    assert left(found) == {"data_types.grad_accum_dtype": "memory", "optimizer.type": "speed"}


def test_defaults_are_those_of_deepspeed_and_not_of_distbench(tmp_path):
    found = read(tmp_path, SHARDED)
    assert found.strategy.options == {
        "stage": 3,
        "reduce_bucket_size": 500_000_000,
        "prefetch_bucket_size": 50_000_000,
        "param_persistence_threshold": 100_000,
        "max_live_parameters": 500_000_000,
        "max_reuse_distance": 1_000_000_000,
        "quantized_weights": True,
        "grad_accum_dtype": "bf16",
    }
    assert found.precision == {"compute": "bf16", "reduce": "bf16"}
    assert found.optimizer == {"clip_grad_norm": 1.0}
    assert (found.batch, found.world_size) == ({"per_device_batch_size": 4, "micro_batch_size": 4}, None)
    assert left(found) == {"optimizer": "training"}


@pytest.mark.parametrize("settings", [OFFLOADED, SHARDED])
def test_what_is_written_for_the_case_means_the_same(command, tmp_path, settings):
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), "--from", str(tmp_path / "ds.json"), "--model", "tiny")
    assert code == 0, errors
    case = own_case(file)
    zero = Zero(**case.strategy.options)
    sizes = {key: getattr(zero, key) for key in optional_sizes(zero)}
    written = configuration(zero, case, {key: size for key, size in sizes.items() if size is not None})
    # other than by its own names, and quantization, which the engine adds
    told = {key: value for key, value in settings.items() if key not in ("optimizer", "scheduler")}
    told.pop("steps_per_print", None)
    for key, value in told.items():
        if not isinstance(value, dict):
            assert written[key] == value, key
            continue
        for inner, number in value.items():
            if inner not in ("pin_memory", "offload_optimizer", "zero_quantized_weights"):
                assert written[key][inner] == number, (key, inner)


TUNED = {
    **OFFLOADED,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "pin_memory": False},
        "offload_param": {"device": "nvme", "nvme_path": "/x", "pin_memory": False},
        "contiguous_gradients": False,
        "sub_group_size": 1e8,
        "stage3_max_live_parameters": 5e8,
    },
    "aio": {"block_size": 2097152, "queue_depth": 16, "single_submit": True},
}
# no case with quantization runs
PLAIN = {**SHARDED, "zero_optimization": {"stage": 3, "stage3_max_live_parameters": 5e8}}
DEALT = {**SHARDED, "zero_optimization": {"stage": 2, "round_robin_gradients": True}}
DIVIDED = {**SHARDED, "zero_optimization": {"stage": 0}, "gradient_predivide_factor": 4.0}
WHAT_DEEPSPEED_READS = (
    *("gradient_clipping", "communication_data_type", "bfloat16_config", "prescale_gradients", "aio_config"),
    *("gradient_predivide_factor", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
)


@pytest.mark.train
@pytest.mark.parametrize("settings", [OFFLOADED, PLAIN, TUNED, DEALT, DIVIDED])
def test_deepspeed_reads_the_same_from_the_file_and_from_what_is_written_for_its_case(
    settings, command, tmp_path, monkeypatch
):
    from deepspeed.runtime.config import DeepSpeedConfig

    (tmp_path / "ds.json").write_text(json.dumps(settings))
    file = tmp_path / "mine.yaml"
    given = json.loads(json.dumps(settings))
    # by default the engine reduces in the dtype of the computation
    given.setdefault("communication_data_type", "bf16")
    assert command("init", str(file), "--from", str(tmp_path / "ds.json"), "--model", "tiny")[0] == 0
    case = own_case(file)
    assert case.label == "yours"
    written = json.loads(export_case("deepspeed", case, {}).files["ds_config.json"])
    for each in (given, written):
        # a process alone reads it
        each.pop("train_batch_size", None)
    old, new = DeepSpeedConfig(given), DeepSpeedConfig(written)
    for name in WHAT_DEEPSPEED_READS:
        assert getattr(new, name) == getattr(old, name), name
    ours, theirs = new.zero_config.model_dump(), old.zero_config.model_dump()
    # how much of a rank's parameters stays in memory beside the disk is no option
    for key in ("offload_param", "offload_optimizer"):
        for each in (ours, theirs):
            (each[key] or {}).pop("max_in_cpu", None)
    assert ours == theirs


def own_case(file: Path) -> Case:
    machine = Machine("cuda", 8, {"torch": "9", "deepspeed": "9"}, has_libaio=True, has_compiler=True)
    plan = make_plan(load_suite(file), machine)
    return plan.cases[0].case


def test_auto_and_settings_that_no_suite_has_are_named_with_their_effect(tmp_path):
    found = read(
        tmp_path,
        {
            "train_batch_size": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "aio": {"block_size": 1},
            "prescale_gradients": True,
            "zero_optimization": {
                "stage": 3,
                "reduce_bucket_size": "auto",
                "round_robin_gradients": True,
                "contiguous_gradients": False,
                "sub_group_size": 1e9,
                "offload_param": {"device": "cpu", "buffer_count": 4},
                "no_such": 1,
            },
            "optimizer": {"type": "OneBitAdam", "params": {"lr": "auto", "freeze_step": 10}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01}},
        },
    )
    assert left(found) == {
        "train_batch_size": "training",
        "gradient_clipping": "training",
        "bf16.enabled": "training",
        "prescale_gradients": "training",
        "zero_optimization.reduce_bucket_size": "speed",
        "zero_optimization.offload_param.buffer_count": "speed",
        "zero_optimization.no_such": "training",
        "optimizer.type": "training",
        "optimizer.params.lr": "training",
        "optimizer.params.freeze_step": "training",
        "scheduler.params.warmup_type": "training",
    }
    assert found.strategy.options["offload_parameters"] == "cpu"
    # stage 3 deals nothing out, and nothing is on a disk
    assert found.strategy.options["contiguous_gradients"] is False
    assert found.strategy.options["sub_group_size"] == 1_000_000_000
    assert not {"aio", "round_robin_gradients", "prescale_gradients"} & {*found.strategy.options}
    assert "reduce_bucket_size" not in found.strategy.options
    assert found.optimizer["lr"] == 0.01


def test_what_people_tune_is_carried_over_in_the_stages_that_have_it(tmp_path):
    def options(section: dict[str, Any], **top: Any) -> dict[str, Any]:
        found = read(tmp_path, {"train_batch_size": 8, "zero_optimization": section, **top})
        names = ("pin_memory", "round_robin_gradients", "sub_group_size", "contiguous_gradients", "aio")
        names += ("prescale_gradients", "gradient_predivide_factor")
        return {name: found.strategy.options[name] for name in names if name in found.strategy.options}

    place = {"device": "nvme", "nvme_path": "/x", "pin_memory": False}
    disk = {"block_size": 1e6, "queue_depth": 16, "single_submit": True, "thread_count": 2}
    assert options({"stage": 3, "offload_optimizer": place, "sub_group_size": 1e8}, aio=disk) == {
        "pin_memory": False,
        "sub_group_size": 100_000_000,
        "aio": {"block_size": 1_000_000, "queue_depth": 16, "single_submit": True},
    }
    assert options({"stage": 2, "round_robin_gradients": True, "contiguous_gradients": False}) == {
        "round_robin_gradients": True,
        "contiguous_gradients": False,
    }
    # DeepSpeed copies them into one buffer there all the same
    offloaded = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": False}
    assert options(offloaded) == {}
    alone = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    assert options({"stage": 1, "round_robin_gradients": True}, **alone) == {}
    assert options({"stage": 0}, prescale_gradients=True, gradient_predivide_factor=8) == {
        "prescale_gradients": True
    }
    assert options({"stage": 0}, gradient_predivide_factor=8) == {"gradient_predivide_factor": 8}
    mixed = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    mixed["offload_param"] = {"device": "cpu", "pin_memory": False}
    found = read(tmp_path, {"zero_optimization": mixed})
    assert left(found)["zero_optimization.offload_optimizer.pin_memory"] == "speed"
    threads = {"zero_optimization": {"stage": 3, "offload_param": place}, "aio": {"thread_count": 2}}
    assert left(read(tmp_path, threads))["aio.thread_count"] == "speed"


def test_comments_as_tutorials_write_them_are_read_over(tmp_path):
    text = (
        '// ours\n{"train_batch_size": 8, /* 1: the\nstates */ "zero_optimization": {"stage": 1, "x//y": 1}}'
    )
    found = read(tmp_path, text)
    assert (found.batch, found.strategy.options["stage"]) == ({"global_batch_size": 8}, 1)
    assert "zero_optimization.x//y" in left(found)


def test_a_file_of_accelerate_is_carried_over(tmp_path):
    found = read(
        tmp_path,
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nmachine_rank: 0\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n"
        "  fsdp_activation_checkpointing: true\n  fsdp_offload_params: true\n"
        "  fsdp_backward_prefetch: NONE\n",
        "a.yaml",
    )
    assert (found.strategy.name, found.strategy.options) == (
        "fsdp",
        {"sharding": "grad_op", "cpu_offload": True},
    )
    assert (found.precision, found.activation_checkpointing) == (
        {"compute": "bf16", "reduce": "bf16"},
        "full",
    )
    assert found.world_size == 4
    assert left(found) == {"fsdp_config.fsdp_backward_prefetch": "speed"}
    ddp = read(tmp_path, "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp16\n", "b.yaml")
    assert ddp.strategy.name == "ddp"
    assert ddp.precision["loss_scale"] == "dynamic"


def test_accelerate_names_a_file_of_deepspeed_or_has_its_settings(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(SHARDED))
    named = read(
        tmp_path,
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
        "a.yaml",
    )
    assert named.strategy == read(tmp_path, SHARDED).strategy
    assert named.world_size == 2
    inside = read(
        tmp_path,
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\n"
        "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 2, offload_param_device: cpu}\n",
        "b.yaml",
    )
    assert inside.strategy.options["offload_parameters"] == "cpu"
    assert inside.batch == {"gradient_accumulation_steps": 2}
    # Accelerate fills in 1.0
    assert inside.optimizer["clip_grad_norm"] == 1.0


def test_arguments_of_the_trainer_are_also_measured_with_its_steps(tmp_path):
    file = tmp_path / "arguments.json"
    file.write_text(json.dumps({"output_dir": "out", "per_device_train_batch_size": 4}))
    assert '{"strategy": "yours", "engine": "trainer"}' in draft_from_file(file, "tiny").render("suite.yaml")
    file.write_text(json.dumps({"output_dir": "out", "fsdp": "full_shard"}))
    assert "engine" not in draft_from_file(file, "tiny").render("suite.yaml")


@pytest.mark.parametrize(
    ("text", "engines"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 2\n", BOTH),
        ("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n", BOTH),
        # the scale would be Accelerate's own
        ("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp16\n", ["native"]),
        # Accelerate has no FSDP here
        ("distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2}\n", ["native"]),
    ],
)
def test_the_training_of_a_framework_is_also_measured_with_its_steps(tmp_path, text, engines):
    file = tmp_path / "accelerate.yaml"
    file.write_text(text)
    file.with_name("suite.yaml").write_text(draft_from_file(file, "tiny").render("suite.yaml"))
    machine = Machine("cpu", 2, {}, has_libaio=False, has_compiler=True)
    plan = make_plan(load_suite(file.with_name("suite.yaml")), machine)
    yours = [item.case for item in plan.cases if item.case.label == "yours"]
    assert [case.engine.name for case in yours] == engines
    assert len({case.work_key(["engine"]) for case in yours}) == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "", "the file is empty"),
        ("x.json", '{\n"a": {', "x.json:2: not JSON"),
        ("x.json", "[1]", "expected a mapping of keys, not list"),
        ("x.yaml", "a: [", "x.yaml:1: not YAML"),
        ("x.yaml", "epochs: 3", "no configuration of DeepSpeed"),
        ("x.json", '{"lr": 1}', "no configuration of DeepSpeed"),
        (
            "x.yaml",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: no.json}",
            "no.json",
        ),
    ],
)
def test_files_that_are_none_are_refused_with_their_place(command, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), "--from", str(tmp_path / name), "--model", "tiny")
    assert (code, file.exists()) == (2, False)
    assert said in errors
    with pytest.raises(UsageError):
        read_configuration(tmp_path / name)


def test_values_of_another_type_are_named_and_stop_nothing(tmp_path):
    found = read(
        tmp_path,
        {
            "zero_optimization": {"stage": "two", "reduce_bucket_size": 1.5},
            "bf16": True,
            "train_batch_size": [8],
            "optimizer": {"type": "Adam", "params": {"lr": "fast"}},
        },
    )
    assert {"zero_optimization.stage", "bf16", "train_batch_size", "optimizer.params.lr"} <= {*left(found)}


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    "x",
    "auto",
    -1,
    0,
    1.5,
    float("inf"),
    float("nan"),
    10**40,
    [],
    [1],
    {},
)


def keys_of(settings: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in settings.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += keys_of(value, (*path, key))
    return found


@pytest.mark.parametrize("settings", [OFFLOADED, SHARDED, {"output_dir": "o", "deepspeed": OFFLOADED}])
def test_no_value_of_a_key_stops_the_reading(tmp_path, settings):
    keys = keys_of(settings)
    assert len(keys) > 5
    for path in keys:
        for odd in ODD:
            changed = json.loads(json.dumps(settings))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            try:
                found = read(tmp_path, changed)
            except UsageError:
                # without it, the file is of no framework, or names a file that is not there
                assert len(path) == 1
                continue
            assert found.strategy.name in ("zero", "ddp"), (path, odd)


def test_a_value_that_no_suite_has_is_refused_with_its_file(command, tmp_path):
    source, file = tmp_path / "ds.json", tmp_path / "mine.yaml"
    source.write_text(json.dumps({**SHARDED, "train_micro_batch_size_per_gpu": -4}))
    code, _, errors = command("init", str(file), "--from", str(source), "--model", "tiny")
    assert (code, file.exists()) == (2, False)
    assert f"--from: {source} can't be carried over" in errors and "= -4" in errors


def test_no_choice_of_a_file_is_replaced_in_silence(tmp_path):
    found = read(
        tmp_path,
        {
            "zero_optimization": {"stage": 0, "reduce_bucket_size": 2e6},
            "bf16": {"enabled": True, "check_grad_overflow": True},
            "communication_data_type": "int8",
            "data_types": {"grad_accum_dtype": "half"},
            "optimizer": {"type": "AdamW", "params": {"betas": [0, 0.99], "torch_adam": True}},
        },
    )
    assert left(found) == {
        "bf16.check_grad_overflow": "training",
        "communication_data_type": "training",
        "data_types.grad_accum_dtype": "training",
    }
    # stage 0 has no buckets of its own
    assert found.strategy.options == {"stage": 0}
    assert found.optimizer["betas"] == [0, 0.99]
    odd = read(tmp_path, {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"betas": [0.9]}}})
    assert "optimizer.params.betas" in left(odd)


def test_a_file_without_a_model_asks_for_one(command, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(SHARDED))
    code, _, errors = command("init", str(tmp_path / "m.yaml"), "--from", str(tmp_path / "ds.json"))
    assert code == 2
    assert "add --model" in errors


TRAINER = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-5,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.03,
    "max_steps": 1000,
    "bf16": True,
    "fp16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "eval_strategy": "steps",
}


def test_arguments_of_the_trainer_are_carried_over_with_its_defaults(tmp_path):
    found = read(tmp_path, {**TRAINER, "dataloader_num_workers": 4, "neftune_noise_alpha": 5, "tf32": True})
    # DDP looks for unused parameters unless layers are recomputed
    assert (found.strategy.name, found.strategy.options) == ("ddp", {"find_unused_parameters": True})
    assert found.batch == {"per_device_batch_size": 8, "micro_batch_size": 4}
    assert found.precision == {"compute": "bf16", "matmul": "high"}
    assert found.optimizer == {
        "name": "adamw",
        "lr": 2e-5,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.0,
        "clip_grad_norm": 1.0,
        "schedule": "cosine",
        "warmup_steps": 30,
        "total_steps": 1000,
    }
    assert left(found) == {"neftune_noise_alpha": "training", "dataloader_pin_memory": "speed"}
    assert found.loader == {"workers": 4}
    unpinned = read(tmp_path, {**TRAINER, "dataloader_num_workers": 4, "dataloader_pin_memory": False})
    assert (left(unpinned), unpinned.loader) == ({}, {"workers": 4})
    on_cpu = read(tmp_path, {**TRAINER, "dataloader_num_workers": 4, "use_cpu": True})
    assert (left(on_cpu), on_cpu.loader) == ({}, {"workers": 4})
    more = {"dataloader_num_workers": 2, "dataloader_pin_memory": True, "dataloader_prefetch_factor": 4}
    kept = read(tmp_path, {**TRAINER, **more, "dataloader_persistent_workers": True})
    assert kept.loader == {
        "workers": 2,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 4,
    }
    assert read(tmp_path, {**TRAINER, "dataloader_pin_memory": True}).loader == {}, "it has no workers"
    recomputed = read(tmp_path, {**TRAINER, "gradient_checkpointing": True, "max_grad_norm": 0})
    assert (recomputed.activation_checkpointing, recomputed.strategy.options) == ("full", {})
    assert "clip_grad_norm" not in recomputed.optimizer


GROUPED = {"padding": "longest", "group_by_length": True}


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({"group_by_length": True}, GROUPED),
        ({"train_sampling_strategy": "group_by_length", "length_column_name": "length"}, GROUPED),
        ({"train_sampling_strategy": "sequential"}, {"shuffle": False}),
        # of TRL's SFTConfig
        ({"packing": True}, {"packing": True}),
        ({"train_sampling_strategy": "random", "group_by_length": False}, {}),
        ({}, {}),
    ],
)
def test_the_order_of_rows_of_the_trainer_is_that_of_a_dataset(command, tmp_path, settings, data):
    found = read(tmp_path, {**TRAINER, **settings})
    assert (found.data, left(found)) == (data, {})
    assert draft_from_file(tmp_path / "ds.json", "tiny", has_data=True).data_options == data
    # rows of the default data are equally long
    without = draft_from_file(tmp_path / "ds.json", "tiny")
    said = (
        [f"{', '.join(data)}: only for a dataset of your own; add --data package.module:callable"]
        if data
        else []
    )
    assert [*without.left_out] == said


def test_a_way_to_draw_rows_that_no_suite_has_is_left_out(tmp_path):
    found = read(tmp_path, {**TRAINER, "train_sampling_strategy": "by_topic"})
    assert (found.data, left(found)) == ({}, {"train_sampling_strategy": "training"})


def test_the_trainer_shards_by_fsdp(tmp_path):
    settings = {
        "fsdp": "shard_grad_op auto_wrap offload",
        "fsdp_config": {"backward_prefetch": "backward_pre"},
    }
    found = read(tmp_path, {**TRAINER, **settings})
    assert (found.strategy.name, found.strategy.options) == (
        "fsdp",
        {"sharding": "grad_op", "cpu_offload": True},
    )
    assert found.precision == {"compute": "bf16", "reduce": "bf16"}
    assert left(found) == {"fsdp_config.version": "speed"}
    first = read(tmp_path, {**TRAINER, "fsdp": True, "fsdp_config": {"version": 1}})
    assert first.strategy.options == {"version": 1}
    assert left(first) == {}
    # what the Trainer itself writes is nothing to leave out; a key keeps the name that it has in the file
    written = {"xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False, "min_num_params": 0}
    config = {"fsdp_version": 2, **written, "limit_all_gathers": True, "fsdp_backward_prefetch": "no"}
    named = read(tmp_path, {**TRAINER, "fsdp": True, "fsdp_config": config})
    assert left(named) == {
        "fsdp_config.fsdp_backward_prefetch": "speed",
        "fsdp_config.limit_all_gathers": "training",
    }
    xla = read(tmp_path, {**TRAINER, "fsdp": True, "fsdp_config": {"version": 2, "xla": True}})
    assert left(xla) == {"fsdp_config.xla": "training"}


def test_the_trainer_fills_in_each_auto_of_a_file_of_deepspeed(tmp_path):
    auto = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
    }
    (tmp_path / "zero.json").write_text(json.dumps(auto))
    found = read(tmp_path, {**TRAINER, "deepspeed": "zero.json"})
    assert (found.strategy.name, found.strategy.options["stage"]) == ("zero", 2)
    assert found.batch == {"per_device_batch_size": 8, "micro_batch_size": 4}
    assert found.precision == {"compute": "bf16", "reduce": "bf16"}
    assert (found.optimizer["lr"], found.optimizer["betas"]) == (2e-5, [0.9, 0.999])
    assert (found.optimizer["clip_grad_norm"], found.optimizer["schedule"]) == (1.0, "cosine")
    # its AdamW is DeepSpeed's kernel
    assert left(found) == {"optimizer.type": "speed"}


def test_a_file_of_deepspeed_decides_before_the_trainer(tmp_path):
    decided = {**SHARDED, "gradient_clipping": 0, "scheduler": {"type": "WarmupLR", "params": {}}}
    (tmp_path / "zero.json").write_text(json.dumps(decided))
    found = read(tmp_path, {**TRAINER, "deepspeed": "zero.json"})
    # clipping is DeepSpeed's alone, and no number of steps is left of the Trainer's cosine
    assert "clip_grad_norm" not in found.optimizer
    assert (found.optimizer["schedule"], found.optimizer["warmup_steps"]) == ("constant", 1000)
    assert "total_steps" not in found.optimizer
    assert found.optimizer["lr"] == 2e-5


def test_a_configuration_of_a_model_becomes_its_workload(command, tmp_path):
    config = tmp_path / "config.json"
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}
    config.write_text(json.dumps({**model, "intermediate_size": 96, "num_attention_heads": 4}))
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), "--from", str(config))
    assert code == 0, errors
    assert "its training, which is not in the file" in errors
    suite = load_suite(file)
    assert suite.work["workload"] == {"huggingface": {"config": str(config), "task": "causal-lm"}}
    again = str(tmp_path / "again.yaml")
    assert "is a model itself" in command("init", again, "--from", str(config), "--model", "tiny")[2]
    config.write_text(json.dumps({**model, "architectures": ["LlamaForTokenClassification"]}))
    code, _, errors = command("init", again, "--from", str(config))
    assert code == 2 and "no task for the model LlamaForTokenClassification" in errors
