"""The smallest workload of each kind."""

from __future__ import annotations

from typing import Any

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.base import Workload

SMALL: dict[str, dict[str, Any]] = {
    "huggingface": {
        "model_type": "llama",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
        },
    },
    "mlp": {"hidden": 16},
    "transformer": {"dim": 32, "depth": 2, "ffn_dim": 48},
    "user": {"model": "small:Small"},
}


def workload(name: str, **options: Any) -> Workload:
    made: Workload = registry.create_plugin("workloads", PluginChoice(name, options))
    return made


def small(name: str) -> Workload:
    return workload(name, **SMALL[name])
