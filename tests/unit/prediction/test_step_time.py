"""Terms of a step follow from operators, links and overlap as physics has them."""

import dataclasses

import pytest

from distbench.prediction.collectives import Group, all_reduce_seconds, gather_seconds
from distbench.prediction.decoder import DecoderShape, attention_flops, layer_products
from distbench.prediction.hardware import Hardware
from distbench.prediction.kernels import COMPILED, EAGER
from distbench.prediction.layout import StepLayout
from distbench.prediction.step_time import predicted_step
from distbench.system.gpu_data_sheets import DATA_SHEETS

MODEL = DecoderShape(
    layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, gated=True, tied=False
)
PARAMETERS = 32 * MODEL.layer_parameters + 2 * 128256 * 4096
STEP = StepLayout(length=8192, micro_batch=1, micro_batches=4)
FSDP = {"shards": 8, "gather_frequency": "pass", "reduce_frequency": "micro_batch"}


def hardware(gpu="h100-sxm", **changes) -> Hardware:
    sheet = DATA_SHEETS[gpu]
    return dataclasses.replace(Hardware(sheet, 8, sheet.inside, sheet.network), **changes)


def terms(machine=None, kernels=EAGER, model=MODEL, **layout):
    step = predicted_step(model, dataclasses.replace(STEP, **layout), machine or hardware(), kernels)
    assert not isinstance(step, str), step
    return step.terms


def test_operators_are_those_of_the_parameters():
    flops = sum(each.flops for each in layer_products(MODEL, 1, 1))
    assert flops == 2 * MODEL.layer_parameters
    # Llama 3.1 8B but for its norms
    assert pytest.approx(8_030_261_248, rel=1e-4) == PARAMETERS
    # causal: half of the positions, 4 FLOPs for each with each element of the heads
    assert attention_flops(MODEL, 8192, 8192, 1) == 2 * 8192 * 8192 * 4096


def test_split_layers_have_their_share_of_the_products():
    whole, cut = (sum(each.flops for each in layer_products(MODEL, 64, split)) for split in (1, 4))
    assert whole == 4 * cut


def test_a_gather_in_a_ring_takes_the_slowest_link():
    inside, over = Group(8), Group(16)
    assert gather_seconds(1e9, Group(1), hardware()) == 0
    assert gather_seconds(8e9, inside, hardware()) == pytest.approx(7e9 / (450e9 * 0.78), rel=0.01)
    # all 8 cards of the node
    assert gather_seconds(16e9, over, hardware()) == pytest.approx(15e9 / (450e9 * 0.78), rel=0.02)
    slow = hardware(between=5e9)
    assert gather_seconds(16e9, over, slow) == pytest.approx(15e9 / (8 * 5e9 * 0.9), rel=0.01)
    # one card, as each rank of the group is on another node
    assert gather_seconds(2e9, Group(2, 8), slow) == pytest.approx(1e9 / (5e9 * 0.9), rel=0.01)
    assert all_reduce_seconds(8e9, inside, slow) == 2 * gather_seconds(8e9, inside, slow)


def test_pairs_with_links_of_their_own_have_a_share_of_them():
    machine = hardware("mi300x")
    pair, all_eight = gather_seconds(2e9, Group(2), machine), gather_seconds(8e9, Group(8), machine)
    assert pair == pytest.approx(1e9 / (448e9 / 7 * 0.78), rel=0.01)
    assert all_eight == pytest.approx(7e9 / (448e9 * 0.78), rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "share"),
    [("v100-32gb", 0.92), ("a100-80gb", 0.92), ("t4", 0.83), ("l4", 0.83), ("b200", 0.83), ("mi300x", 0.83)],
)
def test_products_of_layers_have_a_share_of_the_fastest_one(gpu, share):
    machine = hardware(gpu)
    # nobody measured the fastest one on Volta, Turing and Ada
    fastest = machine.sheet.peak.for_dtype("fp16", tf32=False) * (machine.sheet.achieved_share or 0.803)
    assert machine.product_flops("fp16", tf32=False) == pytest.approx(share * fastest)


def test_one_gpu_has_no_communication_and_no_bubble():
    found = terms()
    assert found["communication"] == found["bubble"] == 0
    # products alone would take as long at 0.83 of the fastest one
    least = 4 * 8192 * 6 * (PARAMETERS - MODEL.vocab * MODEL.hidden) / (794.5e12 * 0.83)
    assert least < found["compute"] < 2.5 * least


def test_compilation_saves_passes_over_memory():
    assert terms(kernels=COMPILED)["compute"] < terms()["compute"]


def test_recomputation_adds_a_forward_pass_of_the_layers():
    none, full = terms()["compute"], terms(recomputation="full")["compute"]
    assert 1.2 * none < full < 1.34 * none
    assert none < terms(recomputation="elementwise")["compute"] < full


def test_gathers_are_hidden_while_computation_lasts():
    fast = terms(**FSDP)["communication"]
    slow = terms(hardware(inside=5e9), **FSDP)["communication"]
    # 3 arrays of all parameters a micro-batch, two in bf16 and one in fp32
    whole = 4 * 7 / 8 * PARAMETERS * 8 / 5e9 / 0.78
    assert 0.5 * whole < slow < whole
    assert fast < 0.05 * slow
    shown = terms(hardware(), overlaps_gathers=False, overlaps_reductions=False, **FSDP)
    assert shown["communication"] > 2 * fast


def test_a_replicated_model_reduces_once_in_a_step():
    few, many = (
        terms(hardware(inside=5e9), replicas=8, micro_batches=count)["communication"] for count in (2, 16)
    )
    assert few == pytest.approx(many, rel=0.01)


def test_sharded_states_are_updated_in_parts():
    assert terms()["update"] == pytest.approx(8 * terms(**FSDP)["update"])


def test_tensor_parallelism_divides_work_and_adds_collectives():
    whole, cut = terms(), terms(tensor=8, sequence_parallel=True)
    assert 6 < whole["compute"] / cut["compute"] < 8
    # two all-reduces of activations of each layer, forward and backward, in each micro-batch
    size = 4 * 32 * 2 * 2 * 2 * 8192 * 4096 * 2 * 7 / 8
    assert cut["communication"] == pytest.approx(size / 450e9 / 0.78, rel=0.15)
    assert (
        terms(tensor=8, sequence_parallel=True, overlaps_tensor=True)["communication"] < cut["communication"]
    )


def test_the_bubble_is_that_of_the_schedule():
    plain = terms(stages=4, micro_batches=8)
    # (p - 1) / m of the time without idling, that of the head not counted, which one rank computes
    assert 0.75 * 3 / 8 < plain["bubble"] / plain["compute"] < 3 / 8
    chunks = terms(stages=4, micro_batches=8, chunks=2)
    assert chunks["bubble"] == pytest.approx(plain["bubble"] / 2)
    split = terms(stages=4, micro_batches=8, splits_backward=True)
    assert split["bubble"] == pytest.approx(plain["bubble"] / 3)


def test_small_layers_wait_for_the_host():
    small = DecoderShape(layers=4, hidden=128, heads=4, kv_heads=2, ffn=512, vocab=256, gated=True, tied=True)
    found = terms(model=small, length=128)
    assert found["host"] > 10 * found["compute"]
    step = predicted_step(small, dataclasses.replace(STEP, length=128), hardware(), EAGER)
    assert not isinstance(step, str)
    # launches are known worse than products
    assert step.seconds.high > 2 * step.seconds.value


def test_generations_without_published_steps_have_a_wider_interval():
    known, unknown = (
        predicted_step(MODEL, STEP, hardware(gpu), EAGER).seconds for gpu in ("h100-sxm", "mi300x")
    )
    assert known.high / known.value == pytest.approx(1.34)
    assert unknown.high / unknown.value == pytest.approx(2)
    rows = predicted_step(MODEL, dataclasses.replace(STEP, float8="row"), hardware(), EAGER).seconds
    assert rows.high / rows.value == pytest.approx(2)


@pytest.mark.parametrize(
    ("machine", "layout", "reason"),
    [
        (hardware(between=None), {"replicas": 16}, "between: 400Gb/s"),
        (hardware(inside=None), {"replicas": 2}, "inside: 50GB/s"),
        (hardware(between=None), {"stages": 16}, "between: 400Gb/s"),
        (hardware("v100-32gb"), {"dtype": "bf16"}, "NVIDIA V100 datasheet, SXM2 has no peak for bf16"),
        (hardware("a100-80gb"), {"float8": "tensor"}, "NVIDIA A100 datasheet has no peak for float8"),
    ],
)
def test_an_unknown_rate_is_a_reason(machine, layout, reason):
    step = predicted_step(MODEL, dataclasses.replace(STEP, **layout), machine, EAGER)
    assert isinstance(step, str)
    assert reason in step


def test_links_that_nothing_crosses_may_be_unknown():
    assert not isinstance(predicted_step(MODEL, STEP, hardware(inside=None, between=None), EAGER), str)
    eight = dataclasses.replace(STEP, replicas=8)
    assert not isinstance(predicted_step(MODEL, eight, hardware(between=None), EAGER), str)
    # one GPU of each node
    apart = hardware(inside=None, gpus_per_node=1)
    assert not isinstance(predicted_step(MODEL, eight, apart, EAGER), str)
