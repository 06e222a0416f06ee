"""A dynamic loss scale of fp16: by the rule of torch and DeepSpeed, the same in every engine."""

import json
import random
from collections.abc import Iterator

import pytest

from distbench.core.case import OptimizerConfig, PrecisionConfig
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import configuration
from support.records import case
from support.runs import call
from support.suites import write_suite

DYNAMIC = PrecisionConfig(compute="fp16", loss_scale="dynamic", initial_scale_power=4, loss_scale_window=3)

SUITE = """
workload: {transformer: {dim: 32, depth: 2, heads: 2, kv_heads: 2, ffn_dim: 32, seq_len: 16}}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
world_sizes: [2]
precision: {compute: fp16, loss_scale: dynamic, initial_scale_power: 24, loss_scale_window: 2}
measure: {warmup: 1, steps: 8, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
"""


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone, of which DeepSpeed asks for the rank that logs."""
    import deepspeed
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_init_required=False)
    yield
    dist.destroy_process_group()


# this process imports DeepSpeed for it; its engine trains with the scale below
@pytest.mark.train
@pytest.mark.deep
def test_the_scale_is_that_of_deepspeed_after_any_overflows(group):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from distbench.strategies.torch_engine.loss_scale import LossScale

    grown = shrunk = 0
    for seed in range(50):
        draw = random.Random(seed)
        ours = LossScale(DYNAMIC)
        theirs = DynamicLossScaler(ours.value, 3, 1.0, 1, False, raise_error_at_min_scale=False)
        for step in range(40):
            before, overflowed = ours.value, draw.random() < 0.02 * (seed % 10)
            ours.update(overflowed=overflowed)
            theirs.update_scale(overflowed)
            assert ours.value == theirs.cur_scale, (seed, step)
            grown += ours.value > before
            shrunk += ours.value < before
    assert grown > 100 and shrunk > 100


def test_deepspeed_is_told_the_whole_rule():
    asked = configuration(Zero(stage=2), case("zero", precision=DYNAMIC), {})["fp16"]
    assert asked == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 4,
        "loss_scale_window": 3,
        "hysteresis": 1,
        "min_loss_scale": 1,
    }


@pytest.mark.train
@pytest.mark.parametrize(
    "strategies", ["single, ddp", pytest.param("single, fsdp, {fsdp: {version: 1}}", marks=pytest.mark.deep)]
)
def test_every_engine_skips_the_same_steps(run_suite, strategies):
    done = run_suite(f"{SUITE}strategies: [{strategies}]\n")
    assert done.code == 0, done.errors
    records = [done.record(each["label"]) for each in done.cases.values()]
    assert len(records) == len(strategies.split(","))
    for record in records:
        assert record["effective"]["loss_scale"] == "dynamic"
        assert record["effective"]["loss_scale_window"] == 2
        # 2^24 overflows until it is small enough, and then once more when it has grown
        assert 0 < record["values"]["skipped_share"] < 1
    assert len({record["values"]["skipped_share"] for record in records}) == 1
    losses = [record["values"]["final_loss"] for record in records]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-3)
    tensors = {row["tensor"] for row in records[0]["tables"]["gradient_range"]}
    assert "blocks.0.ffn.down.weight" in tensors
    for record in records[1:]:
        assert {row["tensor"] for row in record["tables"]["gradient_range"]} == tensors


@pytest.mark.train
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_gradients_are_clipped_by_one_norm_in_a_step(tmp_path, scale):
    import torch

    from distbench.strategies.base import RankContext
    from distbench.strategies.torch_engine.engine import TorchEngine
    from distbench.workloads.mlp import Mlp

    norms = []

    class Counting(TorchEngine):
        def total_norm(self) -> torch.Tensor:
            norms.append(super().total_norm())
            return norms[-1]

    precision = PrecisionConfig(loss_scale=scale)
    trained = case("single", precision=precision, optimizer=OptimizerConfig(clip_grad_norm=0.5))
    context = RankContext(trained, Mlp(), tmp_path, torch.device("cpu"), 0, 1, tmp_path)
    module = torch.nn.Linear(2, 1, bias=False)
    engine = Counting(context, module, [module])
    module.weight.grad = torch.tensor([[3.0, 4.0]]) * (scale or 1)
    engine.step()
    assert len(norms) == 1
    torch.testing.assert_close(module.weight.grad, torch.tensor([[0.3, 0.4]]))


STEEP = """
workload: {user: {model: "small:Steep", length: 16}}
data: text
batch: {global_batch_size: 4}
world_sizes: [2]
measure: {warmup: 1, steps: 16, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, convergence]
"""
UNDER_FIXED = "under loss scale 65536 (in a later step, those of 1 of 13 tensors, steep first)"


@pytest.mark.train
@pytest.mark.parametrize(
    ("precision", "code", "told"),
    [
        (
            "loss_scale: 65536",
            1,
            "mismatch: rank 0 in grad_norm: Mismatch: all 17 steps were skipped, because gradients "
            f"overflowed {UNDER_FIXED}: lower precision.loss_scale, or set it to dynamic",
        ),
        (
            "loss_scale: dynamic, initial_scale_power: 20",
            0,
            "of the timed steps were skipped, because gradients overflowed under a dynamic loss scale (the "
            "largest is that of steep). A skipped step takes its time and trains nothing: lower "
            "precision.initial_scale_power, or raise measure.warmup.",
        ),
        (
            "loss_scale: 8",
            0,
            "ddp: every element of the gradient is 0 in fp16 for faint: it underflows, or the parameter has "
            "no part in the loss.",
        ),
    ],
)
def test_gradients_that_leave_the_range_of_fp16_are_told(run_suite, precision, code, told):
    done = run_suite(f"{STEEP}strategies: [ddp]\nprecision: {{compute: fp16, {precision}}}\n")
    assert done.code == code, done.errors
    assert told in " ".join(call("show", str(done.folder)).stdout.split()).replace("rank 1 in", "rank 0 in")
    if code == 0:
        diagnosis = call("show", str(done.folder), "--view", "diagnosis").stdout
        assert told in " ".join(diagnosis.split())


@pytest.mark.train
def test_what_does_not_have_the_state_of_the_scale_says_so(run_suite):
    done = run_suite(f"{SUITE}strategies: [ddp]\n", "--set", "measure.trials=0", "--set", "checkpoint={}")
    assert done.checkpoints
    assert {each["verdict"] for each in done.checkpoints} == {"lacking"}
    assert all("do not contain the state of a dynamic loss scale" in str(each) for each in done.checkpoints)


def test_without_a_loss_scale_no_step_can_be_skipped(command):
    code, out, _ = command("show", "reports/sample", "--json")
    assert code == 0
    rows = json.loads(out)["cases"]
    assert rows
    assert all("skipped_share" not in row["values"] for row in rows)


@pytest.mark.parametrize(
    ("precision", "told"),
    [
        ("{compute: fp16, loss_scale: sometimes}", "expected a number or dynamic"),
        ("{compute: fp16, loss_scale: dynamic, initial_scale_power: 40}", "must be at most 32"),
        ("{compute: bf16, loss_scale: dynamic}", "only fp16 has a loss scale"),
        ("{compute: fp16, loss_scale_window: 5}", "only a dynamic loss scale has"),
    ],
)
def test_a_loss_scale_that_can_not_be_is_refused(precision, told, tmp_path, command):
    suite = write_suite(
        tmp_path,
        f"workload: mlp\nbatch: {{global_batch_size: 8}}\nstrategies: [ddp]\nprecision: {precision}\n",
    )
    code, _, errors = command("plan", str(suite))
    assert code == 2
    assert told in errors
