"""Dimensions by a configuration of transformers, without it, are those of the model that it builds."""

import pytest

from distbench.workloads.huggingface import HuggingFace

CONFIG = {
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
def test_the_model_has_as_many_parameters(model_type, tied):
    from distbench.workloads.weights import meta_module

    more = {"head_dim": 16} if model_type == "mistral" else {}
    config = {**CONFIG, **more, "tie_word_embeddings": tied}
    workload = HuggingFace(model_type=model_type, vocab_size=500, seq_len=32, config=config)
    found = workload.decoder_dimensions
    assert found
    built = dict(meta_module(workload).named_parameters())
    biases = sum(each.numel() for name, each in built.items() if name.endswith(".bias"))
    # of queries, keys and values, which have no part in the time of a step
    assert biases == (3 * (96 + 2 * 32) if model_type == "qwen2" else 0)
    assert found.parameters() == sum(each.numel() for each in built.values()) - biases


def test_keys_that_are_left_out_have_the_defaults_of_transformers():
    found = HuggingFace(model_type="llama").decoder_dimensions
    assert found
    assert (found.dim, found.depth, found.heads, found.kv_heads, found.ffn_dim) == (4096, 32, 32, 32, 11008)
