"""What DeepSpeed is told where a suite says nothing: its own defaults, but for models too small for them."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from distbench.core.case import PluginChoice, PrecisionConfig
from distbench.core.machine import Machine
from distbench.strategies.zero import Zero, disk
from distbench.strategies.zero.config import DEEPSPEED_DEFAULTS, ModelSizes, configuration, sizes_for_model
from distbench.workloads.transformer import PRESETS
from support.records import case

MACHINE = Machine("cuda", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)
GPT2 = ModelSizes(total=124_000_000, largest_layer=7_000_000, largest_parameter=38_000_000)
LLAMA_1B = ModelSizes(total=1_236_000_000, largest_layer=61_000_000, largest_parameter=263_000_000)


def deepspeed_section(zero: Zero, elements: ModelSizes) -> dict[str, Any]:
    return dict(configuration(zero, case("zero"), sizes_for_model(zero, elements))["zero_optimization"])


def test_sizes_of_a_small_model_are_in_layers_and_those_of_a_large_one_deepspeeds_own():
    small = deepspeed_section(Zero(stage=3), GPT2)
    assert small["reduce_bucket_size"] == small["stage3_prefetch_bucket_size"] == GPT2.largest_layer
    # so that the next layer is gathered while the embedding, which is larger than three layers, is there
    assert small["stage3_max_live_parameters"] == 2 * GPT2.largest_layer + GPT2.largest_parameter
    assert small["stage3_param_persistence_threshold"] == small["stage3_max_reuse_distance"] == 0
    large = {
        key.removeprefix("stage3_"): size for key, size in deepspeed_section(Zero(stage=3), LLAMA_1B).items()
    }
    assert large.items() >= DEEPSPEED_DEFAULTS.items()
    assert (
        PRESETS["1b"].parameters()
        > DEEPSPEED_DEFAULTS["max_live_parameters"]
        > PRESETS["gpt2-small"].parameters()
    )


@pytest.mark.parametrize("elements", [GPT2, LLAMA_1B])
def test_a_size_that_the_suite_sets_is_taken_for_any_model(elements):
    sizes: dict[str, Any] = dict.fromkeys(DEEPSPEED_DEFAULTS, 7) | {"max_reuse_distance": 0}
    found = deepspeed_section(Zero(stage=3, **sizes), elements)
    assert {key: found.get(key, found.get(f"stage3_{key}")) for key in sizes} == sizes


def test_communication_overlaps_where_deepspeed_has_it_so_and_another_choice_is_in_the_name():
    assert [Zero(stage=stage).overlap_comm for stage in (0, 1, 2, 3)] == [False, False, False, True]
    assert [Zero(stage=stage, overlap_comm=True).label for stage in (2, 3)] == ["zero2+overlap", "zero3"]
    # as runs of earlier versions have it
    assert Zero(stage=3, overlap_comm=False).label == "zero3"
    problem = Zero(stage=0, overlap_comm=True).problem(case("zero"), MACHINE)
    assert "always reduces gradients after" in str(problem)


def test_gradients_are_accumulated_in_fp32_whatever_they_are_computed_in_unless_the_suite_says_bf16():
    short = case("zero", precision=PrecisionConfig(compute="bf16"))
    for stage in (1, 2, 3):
        assert configuration(Zero(stage=stage), short, {})["data_types"] == {"grad_accum_dtype": "fp32"}
        assert Zero(stage=stage).required_settings(short)["dtypes.gradients"] == "fp32"
    asked = Zero(stage=2, grad_accum_dtype="bf16")
    assert asked.label == "zero2+bf16-grads"
    assert configuration(asked, short, {})["data_types"] == {"grad_accum_dtype": "bf16"}
    # DeepSpeed refuses another dtype than that of the parameters there
    assert "data_types" not in configuration(Zero(stage=0), short, {})
    for zero, of in ((asked, case("zero")), (Zero(stage=0, grad_accum_dtype="bf16"), short)):
        assert "grad_accum_dtype = bf16 needs stage 1, 2 or 3 and precision: bf16" in str(
            zero.problem(of, MACHINE)
        )


NVME: dict[str, Any] = {"offload_optimizer": "nvme", "nvme_path": "/x"}


def test_what_people_tune_is_told_to_deepspeed_and_required_of_its_engine():
    tuned = {"sub_group_size": 300_000, "contiguous_gradients": False}
    zero = Zero(**tuned, **NVME, aio={"queue_depth": 16, "single_submit": True}, pin_memory=False)
    written = configuration(zero, case("zero", device="cuda"), disk.sizes(zero, GPT2, 2))
    assert written["aio"] == {"queue_depth": 16, "single_submit": True}
    section = written["zero_optimization"]
    assert (section["sub_group_size"], section["contiguous_gradients"]) == (300_000, False)
    assert section["offload_optimizer"]["pin_memory"] is False
    required = zero.required_settings(case("zero"))
    assert required.items() >= {**tuned, "aio.queue_depth": 16, "pin_memory": False}.items()
    divided = configuration(Zero(stage=0, gradient_predivide_factor=4), case("zero"), {})
    assert (divided["gradient_predivide_factor"], "prescale_gradients" in divided) == (4, False)
    dealt = configuration(Zero(stage=2, round_robin_gradients=True), case("zero"), {})
    assert dealt["zero_optimization"]["round_robin_gradients"] is True
    usual = configuration(Zero(stage=2, offload_optimizer="cpu"), case("zero", device="cuda"), {})
    assert usual["zero_optimization"]["offload_optimizer"]["pin_memory"] is True
    assert not {"aio", "prescale_gradients"} & {*usual}
    assert not {"sub_group_size", "round_robin_gradients"} & {*usual["zero_optimization"]}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"aio": {"block_size": True}}, "aio.block_size = true: expected a whole number"),
        ({"aio": {"overlap_events": 1}}, "aio.overlap_events = 1: expected true or false"),
        ({"sub_group_size": 1000}, "with offload_optimizer: nvme use at least 262144"),
    ],
)
def test_requests_to_a_disk_that_can_not_be_made_are_refused(options, why):
    machine = replace(MACHINE, has_libaio=True)
    assert why in str(Zero(**NVME, **options).problem(case("zero"), machine))


def test_bf16_optimizer_has_no_partitions_to_deal_out():
    short = case("zero", precision=PrecisionConfig(compute="bf16"))
    for options in ({"round_robin_gradients": True}, {"contiguous_gradients": False}):
        why = "has no effect without"
        assert why in str(Zero(stage=1, **options).problem(short, MACHINE))
        assert why not in str(Zero(stage=1, grad_accum_dtype="bf16", **options).problem(short, MACHINE))


def test_an_unset_choice_is_the_same_case_as_what_the_stage_makes_of_it():
    def id_of(zero: Zero) -> str:
        return case(strategy=PluginChoice("zero", asdict(zero))).id

    assert id_of(Zero(stage=2)) == id_of(Zero(stage=2, overlap_comm=False, max_reuse_distance=0))
    assert id_of(Zero(stage=3)) == id_of(Zero(stage=3, overlap_comm=True)) != id_of(Zero(overlap_comm=False))
