"""Step times by the rates of a probe and the theory of strategies, reckoned by hand."""

from typing import Any

import pytest

from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice
from distbench.prediction import StepPrediction
from distbench.prediction.cases import predict_from_probe
from distbench.prediction.probed_rates import ProbedRates
from distbench.prediction.probed_step import probed_step
from support.probes import ALONE_S, IN_STEP_S, PASS_S, UPDATE_S, probe_of, probe_rows
from support.records import case

PARAMETERS = 1_016_960
"""Of the preset tiny, whose 4 layers have 9 tensors each, with a tied embedding and a norm besides."""


def cell(strategy: str, options: dict[str, Any] | None = None, **changes: Any) -> Case:
    batch = changes.pop("batch", Batch(8, 4, 1))
    return case(strategy, strategy=PluginChoice(strategy, options or {}), batch=batch, **changes)


def step(of: Case) -> StepPrediction | str:
    rates = ProbedRates.from_rows(probe_rows(of.world_size))
    assert isinstance(rates, ProbedRates)
    return probed_step(of, rates)


def terms(of: Case) -> dict[str, float]:
    found = step(of)
    assert isinstance(found, StepPrediction), found
    assert sum(found.terms.values()) == pytest.approx(found.seconds.value)
    assert found.seconds.low < found.seconds.value < found.seconds.high
    return dict(found.terms)


def test_one_device_computes_and_updates():
    found = terms(cell("single", world_size=1, batch=Batch(8, 4, 2)))
    # 2 micro-batches of 4 samples; 4 bytes for each parameter
    assert found == pytest.approx({"compute": 8 * PASS_S, "update": 4 * PARAMETERS / 1e6 * UPDATE_S})


def test_ranks_of_ddp_meet_for_each_bucket():
    found = terms(cell("ddp"))
    assert found["compute"] == pytest.approx(4 * PASS_S)
    # 4 MB of gradients: a first bucket of 1 MiB, and one for the rest
    assert found["communication"] == pytest.approx(2 * IN_STEP_S)
    assert found["update"] == pytest.approx(4 * PARAMETERS / 1e6 * UPDATE_S)


def test_ranks_of_fsdp_update_a_share():
    found = terms(cell("fsdp"))
    assert found["update"] == pytest.approx(2 * PARAMETERS / 1e6 * UPDATE_S, rel=1e-3)
    # 5 units gathered forward, 4 again, 5 reduced: at most that many meetings, at least one for each unit
    assert 5 * IN_STEP_S < found["communication"] <= 14 * IN_STEP_S


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_ranks_of_zero_update_a_share_whatever_gradients_they_keep(stage, momentum):
    sgd = OptimizerConfig("sgd", momentum=momentum)
    found = terms(cell("zero", {"stage": stage}, optimizer=sgd))
    assert found["update"] == pytest.approx(2 * PARAMETERS / 1e6 * UPDATE_S, rel=1e-3)


def test_tensor_parallel_ranks_share_the_samples():
    found = terms(cell("tp", batch=Batch(8, 8, 1)))
    assert found["compute"] == pytest.approx(4 * PASS_S)


def test_a_pipeline_waits_for_its_other_stages():
    found = terms(cell("pp", {"micro_batches": 4}, batch=Batch(8, 8, 1)))
    # half of the layers for 4 micro-batches of 2 samples; (p - 1) / (m + p - 1) = 1/5 of the step is idle
    assert found["compute"] == pytest.approx(4 * PASS_S)
    assert found["bubble"] == pytest.approx(PASS_S)
    assert found["communication"] > ALONE_S


def test_recomputation_is_probed_with_the_case():
    one = cell("single", world_size=1, batch=Batch(8, 4, 2))
    again = cell("single", world_size=1, batch=Batch(8, 4, 2), activation_checkpointing="full")
    assert isinstance(predict_from_probe(one, None, [probe_of(one)]).step, StepPrediction)
    assert predict_from_probe(again, None, [probe_of(one)]).step == (
        "the probe on one device has another activation_checkpointing"
    )


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (cell("ddp", {"powersgd_rank": 2}), "lossy communication"),
        (cell("pp", {"schedule": "ZBVZeroBubble"}, batch=Batch(8, 8, 1)), "halves of its backward pass"),
        (cell("ddp", engine=PluginChoice("accelerate")), "engine accelerate"),
        (
            cell("ep", workload=PluginChoice("transformer", {"preset": "moe-tiny"})),
            "how evenly tokens are routed",
        ),
        (cell("ddp", workload=PluginChoice("user", {"model": "m:M"})), "the size of the model"),
    ],
)
def test_what_no_rate_tells_has_a_reason(of, reason):
    found = step(of)
    assert isinstance(found, str)
    assert reason in found


def test_a_step_that_offloads_takes_at_least_what_the_rest_takes():
    found = step(cell("fsdp", {"cpu_offload": True}))
    assert isinstance(found, StepPrediction)
    assert found.unpredicted_part == "offload"


def test_speed_and_flops_follow_from_the_step():
    one = cell("single", world_size=1, batch=Batch(8, 4, 2))
    found = predict_from_probe(one, None, [probe_of(one)])
    assert isinstance(found.step, StepPrediction)
    seconds = found.step.seconds
    assert found.tokens_per_s and found.flops_per_device
    assert found.tokens_per_s.value == pytest.approx(8 * 128 / seconds.value)
    assert found.tokens_per_s.low == pytest.approx(8 * 128 / seconds.high)
    # 6 N T and attention, per sample; 8 of them on one device
    assert found.flops_per_device.value > 6 * 900_000 * 128 * 8 / seconds.value
    assert found.mfu is None


def test_gpus_hide_the_gradients_of_data_parallelism_but_the_last():
    busy, idle = cell("ddp", device="cuda"), cell("ddp", device="cuda", batch=Batch(2, 1, 1))
    # 6 ms of communication: 4 samples hide it, and the last bucket is never hidden
    assert terms(busy)["communication"] == pytest.approx(IN_STEP_S)
    few = [
        {**row, "seconds": row["seconds"] / 10} if row["rate"] == "forward_backward" else row
        for row in probe_rows(2)
    ]
    rates = ProbedRates.from_rows(few)
    assert isinstance(rates, ProbedRates)
    found = probed_step(idle, rates)
    assert isinstance(found, StepPrediction)
    # 1 ms of computation hides 1 of the 6
    assert found.terms["communication"] == pytest.approx(2 * IN_STEP_S - PASS_S / 10)
