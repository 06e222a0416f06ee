"""Steps of models of transformers from data sheets: those of ``transformer`` with the same dimensions."""

from typing import Any

import pytest

from distbench.core.case import Batch, Case, PluginChoice, PrecisionConfig
from distbench.plan import make_plan
from distbench.prediction import StepPrediction, data_sheet_step
from distbench.suite import load_suite
from distbench.system.gpu_types import parse_gpu_cluster
from distbench.system.machine import described_machine
from distbench.workloads.base import workload_of
from support.records import case

NODE = described_machine(parse_gpu_cluster("h100-sxm:8"))
LENGTH, VOCABULARY = 1024, 32_000
# all keys, as this has to do without transformers, which knows the defaults
CONFIG = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
OWN_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64, "attention_bias": False, "mlp_bias": False},
    "mistral": {"head_dim": 64, "sliding_window": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": 4096},
}
OURS = {
    "dim": 2048,
    "ffn_dim": 8192,
    "depth": 16,
    "heads": 32,
    "kv_heads": 8,
    "vocab_size": VOCABULARY,
    "tied": True,
    "seq_len": LENGTH,
}


def cell(workload: PluginChoice, strategy: str = "fsdp") -> Case:
    return case(
        strategy,
        8,
        workload=workload,
        batch=Batch(16, 2, 1),
        precision=PrecisionConfig(compute="bf16"),
        device="cuda",
    )


def of_transformers(model_type: str = "llama", **changes: Any) -> PluginChoice:
    options = {"model_type": model_type, "vocab_size": VOCABULARY, "seq_len": LENGTH}
    return PluginChoice(
        "huggingface", {**options, "config": {**CONFIG, **OWN_KEYS.get(model_type, {}), **changes}}
    )


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero", "tp"])
def test_a_step_is_that_of_our_own_decoder(model_type, strategy):
    found = data_sheet_step(cell(of_transformers(model_type), strategy), NODE)
    assert isinstance(found, StepPrediction), found
    assert found == data_sheet_step(cell(PluginChoice("transformer", OURS), strategy), NODE)


def test_dimensions_are_those_of_the_configuration():
    found = workload_of(cell(of_transformers(tie_word_embeddings=False))).decoder_dimensions
    assert found
    assert (found.dim, found.depth, found.heads, found.kv_heads) == (2048, 16, 32, 8)
    assert (found.ffn_dim, found.vocab_size, found.tied, found.window) == (8192, VOCABULARY, False, None)


def test_a_window_that_rows_do_not_reach_is_none():
    wide, narrow = (
        workload_of(cell(of_transformers("mistral", sliding_window=size))) for size in (LENGTH, LENGTH - 1)
    )
    assert wide.decoder_dimensions
    assert wide.decoder_dimensions.window is None
    assert narrow.decoder_dimensions
    assert narrow.decoder_dimensions.window == LENGTH - 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "config.hidden_act = 'gelu': steps are known with silu"),
        ({"attention_bias": True}, "config.attention_bias is set: steps are known without it"),
        ({"head_dim": 128}, "config.head_dim = 128: 32 heads are not as wide as the model"),
        ({"num_key_value_heads": 5}, "config.num_key_value_heads = 5 does not divide 32 heads"),
        ({"hidden_size": "large"}, "config.hidden_size = 'large': a number above 0 is needed"),
        ({"num_hidden_layers": 0}, "config.num_hidden_layers = 0: a number above 0 is needed"),
    ],
)
def test_other_blocks_are_not_predicted_and_the_reason_names_the_key(changes, reason):
    assert data_sheet_step(cell(of_transformers(**changes)), NODE) == reason


def test_other_architectures_are_not_predicted():
    options = {"model_type": "gpt2", "vocab_size": VOCABULARY, "seq_len": LENGTH}
    reason = "the operators of model_type = gpt2 are not known before it runs"
    assert data_sheet_step(cell(PluginChoice("huggingface", options)), NODE) == reason


SUITE = """
workload:
  huggingface:
    model_type: llama
    seq_len: 1024
    vocab_size: 128256
    config: {hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32,
      num_key_value_heads: 8, hidden_act: silu}
data: synthetic
batch: {global_batch_size: 16}
precision: bf16
world_sizes: [8]
strategies: [ddp, fsdp]
"""


def test_states_that_are_larger_than_the_memory_are_told_before_a_run(tmp_path):
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    ddp, fsdp = make_plan(load_suite(file), NODE).cases
    # fp32 parameters, gradients and moments of Llama 3 8B, with a table of the embedding and one of the head
    assert ddp.problem
    assert ddp.problem.startswith(
        "the model does not fit: the model states of at least 8,030,261,248 parameters"
    )
    assert fsdp.problem is None
