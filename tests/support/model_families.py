"""Families of Hugging Face models, tiny: options of the workload, and the blocks that are sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
GROUPED = {**SMALL, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Family:
    """A model for one task."""

    model_type: str
    config: dict[str, Any]
    layers: tuple[str, ...]
    """Classes of its layers, in their order."""
    task: str = "causal-lm"
    more: tuple[tuple[str, Any], ...] = ()
    """Other options of the workload."""
    has_batch_norm: bool = False
    """Whether what it computes of a row depends on the other rows of the batch."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the workload."""
        task = {} if self.task == "causal-lm" else {"task": self.task}
        return {"model_type": self.model_type, **task, "config": self.config, **dict(self.more)}


_SHORT = (("seq_len", 32),)
FAMILIES = {
    "llama": Family("llama", GROUPED, ("LlamaDecoderLayer",) * 2, more=_SHORT),
    "qwen2": Family("qwen2", GROUPED, ("Qwen2DecoderLayer",) * 2, more=_SHORT),
    "gpt2": Family("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, ("GPT2Block",) * 2, more=_SHORT),
    "mixtral": Family(
        "mixtral",
        {**GROUPED, "num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.1},
        ("MixtralDecoderLayer",) * 2,
        more=_SHORT,
    ),
    "bert": Family("bert", SMALL, ("BertLayer",) * 2, "masked-lm", _SHORT),
    "roberta": Family("roberta", SMALL, ("RobertaLayer",) * 2, "masked-lm", _SHORT),
    "t5": Family(
        "t5",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        ("T5Block",) * 4,
        "seq2seq",
        (*_SHORT, ("target_len", 16)),
    ),
    "vit": Family("vit", {**SMALL, "patch_size": 8}, ("ViTLayer",) * 2, "image-classification"),
    "resnet": Family(
        "resnet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        ("ResNetStage",) * 2,
        "image-classification",
        (("batch_norm", "per_rank"),),
        has_batch_norm=True,
    ),
}


PUBLISHED = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **GROUPED,
    "vocab_size": 300,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "rope_theta": 500000.0,
    "attention_dropout": 0.1,
    "pretraining_tp": 1,
}
