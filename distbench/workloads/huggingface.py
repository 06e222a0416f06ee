"""``huggingface``: any causal language model that transformers can build."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.bounds import Count
from distbench.data.base import Shape
from distbench.workloads.base import Workload, cross_entropy

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class HuggingFace(Workload):
    """Any causal LM of transformers from its configuration: random weights, nothing downloaded.

    Dropout is off unless config turns it on: each strategy would drop something else. Parameters
    and FLOPs have no formula here; the worker counts the parameters.
    """

    imports = ("transformers",)
    packages = ("transformers",)

    model_type: str
    """The name transformers has for the architecture: llama, gpt2, qwen2, ..."""
    vocab_size: Count = 256
    """Number of token ids."""
    seq_len: Count = 128
    """Tokens in one sample."""
    config: dict[str, Any] = field(default_factory=dict)
    """What differs from the defaults of the architecture's configuration class, by its own names."""

    @property
    def shape(self) -> Shape:
        return Shape("tokens", self.seq_len, self.vocab_size)

    def problem(self) -> str | None:
        problems = []
        if "vocab_size" in self.config:
            problems.append(
                "config: set vocab_size as an option of the workload, which the data is checked against"
            )
        types = _causal_lm_types()
        if types and self.model_type not in types:
            near = ", ".join(difflib.get_close_matches(self.model_type, types, n=3)) or "llama, gpt2, qwen2"
            problems.append(
                f"model_type = {self.model_type!r} is no causal LM of the installed transformers; "
                f"it has {len(types)}, such as {near}"
            )
        return "; ".join(problems) or None

    def module(self) -> nn.Module:
        from distbench.workloads._causal_lm import CausalLM, make_config

        options = {**self.config, "vocab_size": self.vocab_size, "use_cache": False}
        return CausalLM(make_config(self.model_type, options))

    def layers(self, module: nn.Module) -> list[nn.Module]:
        from distbench.workloads._causal_lm import blocks

        return blocks(module)

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(module(batch["input_ids"]), batch["labels"])


def _causal_lm_types() -> list[str]:
    """Causal LMs of transformers from its source, as importing it imports torch; empty if unreadable."""
    spec = importlib.util.find_spec("transformers")
    file = Path(spec.origin).parent / "models/auto/modeling_auto.py" if spec and spec.origin else None
    if file is None or not file.is_file():
        return []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign):
            continue
        if "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES" in ast.unparse(node.targets[0]):
            return [
                str(pair.elts[0].value)
                for pair in ast.walk(node.value)
                if isinstance(pair, ast.Tuple) and isinstance(pair.elts[0], ast.Constant)
            ]
    return []
