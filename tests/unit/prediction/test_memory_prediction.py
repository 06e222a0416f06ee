"""Peak memory by formulas, against peaks that a trace counted and that ranks on CPUs measured."""

import dataclasses

import pytest

from distbench.core.case import PluginChoice
from distbench.core.machine import Machine
from distbench.prediction import MemoryPrediction, fits, memory_advice, predict_memory
from support.planned_suites import MACHINE, planned

SMALL = "{dim: 64, depth: 3, heads: 4, kv_heads: 2, ffn_dim: 192, vocab_size: 512, tied: true, seq_len: 64}"
WIDE = "{dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 96, vocab_size: 8192, tied: false, seq_len: 16}"
TWICE = ", gradient_accumulation_steps: 2"

# strategy, ranks, model, rows of a rank, precision, recomputation: bytes of plan --trace with torch 2.13
TRACED = {
    ("single: {}", 1, SMALL, "2", "fp32", "none"): 5_229_436,
    ("single: {}", 1, SMALL, "2", "bf16", "none"): 4_687_612,
    ("single: {}", 1, SMALL, "2", "bf16", "full"): 3_288_828,
    ("single: {optimizer_in_backward: true}", 1, SMALL, "4", "fp32", "none"): 8_286_588,
    ("ddp: {}", 4, SMALL, f"8{TWICE}", "fp32", "none"): 9_731_968,
    ("fsdp: {}", 4, SMALL, "2", "fp32", "none"): 3_734_716,
    ("fsdp: {}", 4, WIDE, "2", "bf16", "full"): 13_911_900,
    ("fsdp: {sharding: grad_op}", 2, WIDE, "2", "fp32", "none"): 19_434_588,
    ("fsdp: {sharding: hybrid}", 4, SMALL, "2", "bf16", "none"): 3_307_900,
    ("fsdp: {mesh: {tp: 2}}", 4, SMALL, "2", "bf16", "none"): 4_097_916,
    ("tp: {}", 2, WIDE, f"4{TWICE}", "bf16", "none"): 17_183_200,
    ("tp: {sequence_parallel: true}", 2, SMALL, "2", "fp32", "full"): 2_893_692,
}

TIED = "{dim: 128, depth: 3, heads: 4, kv_heads: 4, ffn_dim: 384, vocab_size: 1024, tied: true, seq_len: %d}"
TINY = "{preset: tiny, seq_len: 128}"

# memory_peak of two ranks on CPUs with torch 2.13 and DeepSpeed 0.19
MEASURED = {
    ("zero: {stage: 1}", 2, TINY, "4", "fp32", "none"): 41_240_284,
    ("zero: {stage: 2}", 2, TIED % 64, "2", "bf16", "none"): 11_626_968,
    ("zero: {stage: 2}", 2, TIED % 256, "2", "fp32", "full"): 18_848_344,
    ("zero: {stage: 3}", 2, TIED % 64, f"4{TWICE}", "bf16", "none"): 13_513_313,
    ("pp: {schedule: GPipe}", 2, TINY, "4", "fp32", "none"): 38_273_124,
    ("pp: {schedule: 1F1B}", 2, TIED % 256, "2", "fp32", "full"): 14_129_940,
    ("cp: {}", 2, TIED % 64, "2", "bf16", "none"): 18_286_916,
    ("tp: {loss_parallel: true}", 2, TIED % 256, "2", "fp32", "full"): 16_256_392,
}


def case_of(folder, strategy, ranks, model, rows, precision="fp32", recomputation="none", **sections):
    """Case of a decoder with the dimensions *model*, and *rows* rows for each device."""
    made = {
        "workload": f"{{transformer: {model}}}",
        "data": "synthetic",
        "batch": f"{{per_device_batch_size: {rows}}}",
        "precision": precision,
        "activation_checkpointing": recomputation,
    }
    machine = dataclasses.replace(MACHINE, packages={"torch": "9", "deepspeed": "0.19.8"}, has_libaio=True)
    item = planned(folder, strategy, ranks, machine=machine, **(made | sections))
    assert item.problem is None
    return item.case


def prediction_of(*arguments, **sections) -> MemoryPrediction:
    prediction = predict_memory(case_of(*arguments, **sections))
    assert isinstance(prediction, MemoryPrediction), prediction
    return prediction


@pytest.mark.parametrize(("asked", "traced"), TRACED.items(), ids=str)
def test_the_peak_is_that_of_a_trace(tmp_path, asked, traced):
    assert prediction_of(tmp_path, *asked).peak.value == pytest.approx(traced, rel=0.001)


@pytest.mark.parametrize(("asked", "measured"), MEASURED.items(), ids=str)
def test_the_peak_is_what_ranks_measure(tmp_path, asked, measured):
    assert prediction_of(tmp_path, *asked).peak.value == pytest.approx(measured, rel=0.02)


def test_the_kinds_are_a_sum_and_name_what_a_strategy_adds(tmp_path):
    kinds = {}
    for strategy in ("single", "ddp", "fsdp"):
        ranks = 1 if strategy == "single" else 4
        prediction = prediction_of(tmp_path, f"{strategy}: {{}}", ranks, SMALL, "2")
        assert sum(prediction.kinds.values()) == prediction.peak.value
        assert prediction.peak.low < prediction.peak.value < prediction.peak.high
        kinds[strategy] = prediction.kinds
    whole = kinds["single"]["parameters"]
    assert kinds["ddp"]["buckets"] == whole
    assert kinds["single"]["gathered"] == kinds["single"]["buckets"] == 0
    assert kinds["fsdp"]["parameters"] == whole / 4
    assert kinds["fsdp"]["gathered"] > 0


def test_of_a_gpu_the_interval_has_the_peak_with_fused_norms(tmp_path):
    gpus = dataclasses.replace(
        MACHINE, device="cuda", packages={"torch": "9"}, device_memory=80 << 30, compute_capability=9.0
    )
    asked = {
        "workload": f"{{transformer: {SMALL}}}",
        "data": "synthetic",
        "batch": "{per_device_batch_size: 64}",
    }
    on = {
        machine.device: predict_memory(planned(tmp_path, "single: {}", 1, machine=machine, **asked).case)
        for machine in (MACHINE, gpus)
    }
    assert on["cuda"].peak.value == on["cpu"].peak.value
    assert on["cuda"].peak.low < on["cpu"].peak.low
    assert on["cuda"].peak.high == on["cpu"].peak.high


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"activation_checkpointing": "selective"}, "activation_checkpointing = selective"),
        ({"compile": "true"}, "compile = default"),
        (
            {"optimizer": "{name: muon}"},
            "optimizer.name = muon: peak memory is predicted for adamw, adam, sgd only",
        ),
        (
            {"workload": "mlp", "data": "digits"},
            "workload mlp: the operations of its model are not described",
        ),
        ({"workload": "{transformer: {preset: moe-tiny}}"}, "experts: their routers decide"),
    ],
)
def test_what_no_formula_has_is_a_reason(tmp_path, changed, reason):
    found = predict_memory(case_of(tmp_path, "fsdp: {}", 2, SMALL, "2", **changed))
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"packing": True}, "packing: no formula for attention with a mask of documents"),
        ({"padding": "longest"}, "padding = longest: the lengths of the rows decide"),
    ],
)
def test_rows_of_unequal_length_are_a_reason(tmp_path, layout, reason):
    case = case_of(tmp_path, "fsdp: {}", 2, SMALL, "2")
    data = PluginChoice("user", {"dataset": "datasets_of_users:Tokens", **layout})
    found = predict_memory(dataclasses.replace(case, data=data))
    assert isinstance(found, str)
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (
            "fsdp: {layers_per_unit: 2, reshard_root: true}",
            "reshard_root, layers_per_unit: peak memory is predicted for",
        ),
        ("zero: {stage: 2, offload_optimizer: cpu}", "peak memory is predicted for ZeRO stages 1 to 3"),
        ("pp: {schedule: ZBVZeroBubble}", "schedule = ZBVZeroBubble"),
        ("ddp: {sharded_optimizer: true}", "sharded_optimizer: of ddp"),
        ("cp: {implementation: ring}", "implementation = ring"),
    ],
)
def test_an_option_without_formula_is_named(tmp_path, strategy, reason):
    model = SMALL.replace("depth: 3", "depth: 4")
    found = predict_memory(case_of(tmp_path, strategy, 2, model, "4"))
    assert isinstance(found, str)
    assert reason in found


def gpus_with(memory: float) -> Machine:
    return dataclasses.replace(MACHINE, device="cuda", device_memory=int(memory))


def test_a_peak_fits_only_with_room_for_what_comes_on_top(tmp_path):
    case = dataclasses.replace(case_of(tmp_path, "fsdp: {}", 2, SMALL, "2"), device="cuda")
    prediction = predict_memory(case)
    assert isinstance(prediction, MemoryPrediction)
    peak = prediction.peak
    found = [fits(prediction, case, gpus_with(memory)) for memory in (peak.low - 1, peak.high, 2 * peak.high)]
    assert found == ["no", "unsure", "yes"]
    unknown = dataclasses.replace(MACHINE, device="cuda", device_memory=None)
    assert fits(prediction, case, unknown) == "unsure"


def test_ranks_of_a_cpu_share_its_memory(tmp_path):
    case = case_of(tmp_path, "fsdp: {}", 2, SMALL, "2")
    prediction = predict_memory(case)
    assert isinstance(prediction, MemoryPrediction)
    one = dataclasses.replace(MACHINE, memory=int(1.5 * prediction.peak.value))
    assert fits(prediction, case, one) == "no"
    # interpreters and libraries take more than these tensors
    assert fits(prediction, case, dataclasses.replace(MACHINE, memory=1 << 30)) == "unsure"
    assert fits(prediction, case, dataclasses.replace(MACHINE, memory=1 << 31)) == "yes"


def test_advice_names_what_needs_less_and_how_much(tmp_path):
    case = dataclasses.replace(case_of(tmp_path, "fsdp: {}", 2, SMALL, "8"), device="cuda")
    now = predict_memory(case)
    assert isinstance(now, MemoryPrediction)
    machine = gpus_with(0.6 * now.peak.value)
    advice = dict(memory_advice(case, machine))
    assert list(advice) == [
        "batch.micro_batch_size: 4",
        "activation_checkpointing: full",
        "batch.micro_batch_size: 4 with activation_checkpointing: full",
    ]
    assert all(peak.value < now.peak.value for peak in advice.values())
    again = dataclasses.replace(case, activation_checkpointing="full")
    assert advice["activation_checkpointing: full"] == predict_memory(again).peak
    assert list(dict(memory_advice(again, machine))) == ["batch.micro_batch_size: 4"]
    # a smaller memory needs smaller micro-batches
    small = gpus_with(0.4 * now.peak.value)
    assert "batch.micro_batch_size: 2" in dict(memory_advice(case, small))
    # of an unknown memory they are halved once
    assert memory_advice(case, None) == memory_advice(case, machine)
    assert memory_advice(case, None) != memory_advice(case, small)


def test_what_can_not_be_predicted_has_no_advice(tmp_path):
    case = case_of(tmp_path, "fsdp: {layers_per_unit: 2}", 2, SMALL, "8")
    assert memory_advice(case, MACHINE) == []
