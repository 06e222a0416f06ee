"""Frameworks train a model that transformers has split: the same training, and what they can't split."""

import pytest

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume
from distbench.analysis.losses.case_losses import SAME_LOSSES
from distbench.analysis.mesh_dimensions import call_count_mismatches
from distbench.core.machine import Machine
from support.planned_suites import planned
from support.releases import needs_release
from support.suites import SuiteText
from support.theory_checks import against_theory, assert_same_training, measured_trials

LLAMA = """{huggingface: {model_type: llama, seq_len: 32, config: {hidden_size: 64, intermediate_size: 128,
  num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: TIED}}}"""
QWEN = """{huggingface: {model_type: qwen3, seq_len: 32, config: {hidden_size: 64, intermediate_size: 128,
  num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16}}}"""
SUITE = SuiteText("""
workload: MODEL
data: text
batch: {global_batch_size: 8, micro_batch_size: 4}
optimizer: {name: adamw, clip_grad_norm: 0.05, schedule: cosine, warmup_steps: 2, total_steps: 8}
measure: {warmup: 1, steps: 3, trials: 1, profile_steps: 0}
metrics: [steptime, throughput, memory, communication]
limits: {step: 60}
launcher: {kept: {oversubscribe: true}}
world_sizes: [2]
strategies: [tp]
""")
CHECK = "check: {steps: 2, perturbed: 4, fp64: false}\n"
pytestmark = [
    pytest.mark.train,
    needs_release("transformers", "5.23"),
    needs_release("accelerate", "1.15"),
]


def test_a_split_model_trains_as_the_reference_does(run_suite):
    suite = SUITE.replace("MODEL", LLAMA).replace("TIED", "true")
    done = run_suite(f"{suite}{CHECK}engine: trainer\n")
    assert_same_training(done)
    assert against_theory(done.folder) == dict.fromkeys(done.verdicts, "")
    (case,) = done.cases.values()
    assert case["verdicts"]["losses"]["word"] == SAME_LOSSES
    (file,) = done.folder.glob("trials/*/0/record.json")
    effective = done.read(file)["effective"]
    assert effective["mesh"] == {"tp": 2}
    # all but the two norms of each layer and the last one: 7 linear layers each, and the tied table
    assert effective["split_tensors"] == 15
    assert effective["dtypes"]["gradients"] == "fp32"


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("engine", ["accelerate", "trainer"])
def test_each_framework_trains_it_in_each_precision_and_resumes_it(run_suite, engine, precision):
    suite = SUITE.replace("MODEL", LLAMA).replace("TIED", "false")
    done = run_suite(f"{suite}{CHECK}engine: {engine}\nprecision: {precision}\ncheckpoint: true\n")
    assert_same_training(done)
    (record,) = measured_trials(done.folder)
    moved = compare_volume(record)
    assert moved is not None
    assert moved.unexplained_share < UNEXPLAINED_TOLERANCE
    assert call_count_mismatches(record) == ""
    assert {row["verdict"] for row in done.checkpoints} <= {"same", "rounding"}


@pytest.mark.deep
def test_norms_of_heads_have_the_sum_of_the_devices_in_one_micro_batch(run_suite):
    suite = SUITE.replace("MODEL", QWEN).replace("micro_batch_size: 4", "micro_batch_size: 8")
    assert_same_training(run_suite(f"{suite}{CHECK}engine: [accelerate, trainer]\n"))


REFUSED = {
    "more ranks than heads": (
        {"workload": LLAMA},
        "tp: {}",
        8,
        "tensor parallelism over 8 devices: num_attent",
    ),
    "norms of heads, accumulated": (
        {"workload": QWEN, "batch": "{global_batch_size: 8, micro_batch_size: 4}"},
        "tp: {}",
        2,
        "transformers (5.23) sums the gradients of model.model.layers.*.self_attn.q_norm and ",
    ),
    "norms of heads, cast": (
        {"workload": QWEN, "precision": "bf16"},
        "tp: {}",
        2,
        "transformers (5.23) sums gradients of parameters in fp32 alone for model.model.layers.*.self_attn",
    ),
    "split activations": (
        {"workload": LLAMA},
        "tp: {loss_parallel: true}",
        2,
        "tp.loss_parallel has no counterpart in engine accelerate",
    ),
    "one rank": (
        {"workload": LLAMA},
        "tp: {}",
        1,
        "engine accelerate splits a model over two devices or more",
    ),
    "no plan": (
        {"workload": "{huggingface: {model_type: gpt2, seq_len: 32}}"},
        "tp: {}",
        2,
        "tensor parallelism over 2 devices: GPT2Config of transformers has no base_model_tp_plan",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_can_not_split_is_unsupported(name, tmp_path):
    sections, strategy, ranks, told = REFUSED[name]
    packages = dict.fromkeys(("torch", "transformers", "accelerate"), "9")
    machine = Machine("cpu", 8, packages, has_libaio=False, has_compiler=True)
    sections = {"batch": "{global_batch_size: 8}", **sections}
    sections["workload"] = sections["workload"].replace("TIED", "true")
    item = planned(tmp_path, strategy, ranks, machine=machine, engine="accelerate", **sections)
    assert (item.problem or "").startswith(told), item.problem
