"""transformers' Trainer takes the steps of a case: the same training, and nothing of it stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distbench.analysis.losses.case_losses import SAME_LOSSES
from support.releases import needs_release
from support.suites import SuiteText
from support.theory_checks import against_theory, assert_same_training

TESTS = Path(__file__).parents[1]
QUICK = SuiteText("""
engine: trainer
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
optimizer: {clip_grad_norm: 0.1}
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0, unsynced_steps: 1}
check: {steps: 2, perturbed: 4, fp64: false}
launcher: {kept: {oversubscribe: true}}
world_sizes: [2]
""")
SCHEDULE = "optimizer: {clip_grad_norm: 0.1, schedule: cosine, warmup_steps: 1, total_steps: 8}"
COUNTED = '"small:Small", length: 32, loss_function: "odd:sum_over_letters", count_function: "odd:letters"'
LLAMA = """{huggingface: {model_type: llama, seq_len: 32, config: {hidden_size: 64, intermediate_size: 128,
  num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}}}"""
NEEDS_DEEPSPEED = needs_release("transformers", "5.2")
"""The Trainer of 5.1 does not give the model to DeepSpeed."""


def _of(suite: str, *strategies: str) -> str:
    return f"{suite}\nstrategies: [{', '.join(strategies)}]"


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.deep),
        pytest.param("{zero: {stage: 2}}", marks=NEEDS_DEEPSPEED),
    ],
)
def test_it_trains_as_the_reference_does_and_moves_what_theory_says(strategy, run_suite):
    suite = QUICK.replace("optimizer: {clip_grad_norm: 0.1}", SCHEDULE)
    suite = suite.replace('"small:Small", length: 32', COUNTED)
    done = run_suite(_of(suite, strategy))
    assert_same_training(done)
    (case,) = done.cases.values()
    assert case["verdicts"]["losses"]["word"] == SAME_LOSSES
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")
    (file,) = done.folder.glob("trials/*/0/record.json")
    effective = done.read(file)["effective"]
    assert effective["framework"].startswith("transformers ")
    assert effective["dtypes"]["gradients"] == "fp32"
    assert not [each for each in file.parent.rglob("*") if "checkpoint" in each.name or each.is_dir()]


@pytest.mark.deep
@NEEDS_DEEPSPEED
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_draws_and_resumes_as_the_native_steps_do(precision, run_suite):
    suite = QUICK.replace("optimizer: {clip_grad_norm: 0.1}", SCHEDULE).replace("small:Small", "odd:Dropout")
    suite = suite.replace("fp64: false", "fp64: false, dropout: off")
    suite = suite.replace("engine: trainer", "engine: [native, trainer]")
    done = run_suite(
        f"{_of(suite, 'ddp', '{zero: {stage: [1, 2, 3]}}')}\nprecision: {precision}\ncheckpoint: true"
    )
    assert_same_training(done)
    assert len(done.verdicts) == 8
    losses = {}
    for file in done.folder.glob("trials/*/0/record.json"):
        record = done.read(file)
        strategy = file.parents[1].name.partition("-")[0]
        losses.setdefault(strategy, []).append(record["samples"]["loss"])
    assert len(losses) == 4
    assert all(native == trainer for native, trainer in losses.values()), "the same elements are dropped"
    assert {row["verdict"] for row in done.checkpoints} <= {"same", "rounding"}


@pytest.mark.deep
@NEEDS_DEEPSPEED
def test_a_model_of_transformers_trains_with_it(run_suite):
    suite = QUICK.replace('{user: {model: "small:Small", length: 32}}\ndata: text', LLAMA)
    done = run_suite(_of(suite, "ddp", "{zero: {stage: [0, 3]}}"))
    assert_same_training(done)
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")


def test_what_the_trainer_would_change_in_a_model_is_refused(run_suite):
    suite = QUICK.partition("check:")[0]
    done = run_suite(
        _of(suite.replace("small:Small", "odd:HalfEvaluated"), "ddp") + "\nworld_sizes: [2]\n"
        "launcher: {kept: {oversubscribe: true}}"
    )
    (case,) = done.cases.values()
    assert case["status"] == "unsupported"
    assert case["reason"] == (
        "the Trainer sets all of the model to training mode in each step, but parts of it are in evaluation "
        "mode (layers.0, layers.0.up, layers.0.down); let train() of the model keep them there, or use "
        "engine: native"
    )


STEPS = """\
import gc, os, random, weakref
from pathlib import Path
import numpy, torch
import torch.distributed as dist
from distbench.core import registry
from distbench.core.case import Batch, PluginChoice
from distbench.engines.base import engine_of
from distbench.strategies.base import RankContext
from distbench.worker.batches import MicroBatchReader
from distbench.workloads import weights
from support.records import case
# its import may draw
import distbench.engines.trainer.engine

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
here, chosen = Path.cwd(), PluginChoice("user", {"model": "odd:WithConfig", "length": 32})
of = case("ddp", 1, workload=chosen, batch=Batch(4, 2, 2), engine=PluginChoice("trainer"))
workload, file = registry.create_plugin("workloads", chosen), here / "weights"
weights.save_initial(workload, of.seed, file, "fp32")
setting = RankContext(of, workload, file, torch.device("cpu"), 0, 1, here)
reader = MicroBatchReader(setting)

def drawn():
    return random.getstate(), numpy.random.get_state()[1].tolist()

def built():
    return engine_of(of).build(registry.create_plugin("strategies", of.strategy), setting)

before = drawn()
engine = built()
print(drawn() == before, engine.module.module.config)
for batch in reader.micro_batches(0):
    engine.forward_backward(batch)
clipped_later = engine.grad_norm() > 0
engine.step()
print(clipped_later, all(p.grad is None for p in engine.module.parameters()))
engine.forward_backward(reader.micro_batches(1)[0])
alive = weakref.ref(engine.module.module)
del batch, engine
gc.collect()
print(alive() is None)
engine = built()
engine.close()
try:
    engine.forward_backward(reader.micro_batches(0)[0])
except RuntimeError as error:
    print(error)
print(sorted(path.name for path in here.iterdir()))
os._exit(0)
"""


def test_its_loop_ends_with_the_engine_and_leaves_nothing(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "models"), os.environ.get("PYTHONPATH", "")]),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    told = subprocess.run(
        [sys.executable, "-u", "-c", STEPS], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout.splitlines()[-5:] == [
        "True ('width', 16)",
        "True True",
        "True",
        "the loop of the Trainer has ended, after 0 steps",
        "['weights']",
    ], told.stderr
