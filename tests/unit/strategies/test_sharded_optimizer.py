"""DDP with torch's ZeroRedundancyOptimizer: what it moves and keeps, and what it can't have."""

import dataclasses

import pytest

from distbench.adopt import export_case
from distbench.core.case import OptimizerConfig, PluginChoice
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.strategies.ddp import DistributedDataParallel
from support.records import case
from support.theory_checks import assert_same_training, bytes_by_operation

MACHINE = Machine("cpu", 2, {"torch": "9"}, has_libaio=False, has_compiler=True)
SHARDED = DistributedDataParallel(sharded_optimizer=True)


def test_state_is_divided_and_every_updated_parameter_sent_once():
    of = case("ddp", 2)
    assert bytes_by_operation(SHARDED, of, 1000) == {"all_reduce": 4000.0, "broadcast": 4000.0}
    states, plain = SHARDED.model_states(of, 1000), DistributedDataParallel().model_states(of, 1000)
    assert states == {**plain, "optimizer_state": plain["optimizer_state"] / 2}


def test_muon_which_is_two_optimizers_is_refused():
    muon = case("ddp", 2, optimizer=OptimizerConfig(name="muon", kernel="loop"))
    assert "combines two" in (SHARDED.problem(muon, MACHINE) or "")


def test_only_a_script_of_plain_torch_can_have_it():
    of = dataclasses.replace(case("ddp", 2), strategy=PluginChoice("ddp", {"sharded_optimizer": True}))
    with pytest.raises(UsageError, match=r"only a plain torch script .* use --as torch"):
        export_case("accelerate", of, {})
    (script,) = export_case("torch", of, {}).files.values()
    compile(script, "train_functions.py", "exec")
    assert "ZeroRedundancyOptimizer(\n        model.parameters(),\n        torch.optim.AdamW" in script


@pytest.mark.train
@pytest.mark.parametrize(("fused", "found"), [(True, "meta"), (False, "cpu")])
def test_what_was_loaded_counts_updates_where_its_kernel_wants_them(fused, found):
    import torch

    from distbench.strategies.torch_engine.optimizer import move_step_counters

    # a device without kernels stands for CUDA
    parameter = torch.nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.param_groups[0]["fused"] = fused
    optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": torch.empty(2, device="meta")}
    move_step_counters(optimizer)
    assert optimizer.state[parameter]["step"].device.type == found


@pytest.mark.train
@pytest.mark.deep
def test_every_optimizer_of_one_kind_is_the_same_training_and_resumes(run_suite):
    done = run_suite("""
workload: {transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 128}}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
world_sizes: [2]
axes:
  precision: [fp32, bf16]
  optimizer:
    - {clip_grad_norm: 0.5, weight_decay: 0.1, schedule: linear, total_steps: 100, warmup_steps: 2}
    - adafactor
    - lamb
    - {name: sgd, momentum: 0.9, lr: 0.1}
    - {name: sgd, lr: 0.1}
strategies: [single, ddp: {sharded_optimizer: true}]
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
check: {steps: 3}
checkpoint: {}
""")
    assert_same_training(done)
    assert {each["verdict"] for each in done.checkpoints} <= {"same", "rounding"}
