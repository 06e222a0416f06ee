"""Constructs the user's own models that a suite names, to find what is wrong with them before a run."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from distbench.core import registry
from distbench.core.case import Choice
from distbench.core.errors import Refused
from distbench.core.serialization import decoded
from distbench.core.text import clipped
from distbench.system.files import write_whole
from distbench.worker.user_code import located
from distbench.workloads import batch_norm, weights
from distbench.workloads.base import Workload

_LONGEST = 2_000
_ROWS = 2
_LENGTHS = (128, 64, 32, 16)
_SMALL = 20_000_000
"""Elements that a model may have to be constructed in memory, where a table of positions refuses a length."""


def construct(file: Path) -> None:
    """Construct each of the workloads in *file*, and write beside it what came of each."""
    asked = json.loads(file.read_text())
    told = [
        _constructed(decoded(Choice, each, str(file)), asked["device"], asked["computes"])
        for each in asked["models"]
    ]
    write_whole(file.with_suffix(".constructed"), json.dumps(told))


def _constructed(choice: Choice, device: str, computes: Sequence[str]) -> dict[str, Any]:
    """Error of the model of *choice*, the shape of its inputs, and in which of *computes* it is refused."""
    try:
        workload: Workload = registry.make("workloads", choice)
        module = _module(workload)
        workload.layers(module)
        seen = _in_memory(module, workload)
    except Exception as error:
        # user code: whatever it raises is the answer
        traceback.print_exc()
        told = clipped(located(error, choice), _LONGEST, "distbench run has the whole in its log")
        return {"problem": told, "shape": {}, "refused": {}}
    refused = {compute: why for compute in computes if (why := _refusal(module, device, compute))}
    return {"problem": "", "shape": _shape(seen), "refused": refused}


def _refusal(module: nn.Module, device: str, compute: str) -> str:
    """Why *module* is not trained in *compute* on a kind of *device*; empty: nothing is known against it."""
    try:
        weights.check_dtypes(module)
        if device == "cpu":
            batch_norm.check_computable(module, compute)
    except Refused as refused:
        return str(refused)
    return ""


def _module(workload: Workload) -> nn.Module:
    """The module, without its memory where the constructor allows that."""
    try:
        with torch.device("meta"):
            return workload.module()
    except Exception:
        # one that looks at its numbers; a mistake is raised again
        return workload.module()


def _in_memory(module: nn.Module, workload: Workload) -> nn.Module:
    """*module* with its memory if that is small: without it no place in a table is out of range."""
    parameters = list(module.parameters())
    if not any(p.is_meta for p in parameters) or sum(p.numel() for p in parameters) > _SMALL:
        return module
    return workload.module()


def _shape(module: nn.Module) -> dict[str, Any]:
    """``kind``, ``length`` and ``classes`` by which one forward pass gives logits; empty: none did."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    for length in _LENGTHS:
        logits = _output(module, torch.zeros(_ROWS, length, dtype=torch.long, device=device))
        if logits is not None and logits.ndim == 3 and logits.shape[:2] == (_ROWS, length):
            return {"kind": "tokens", "length": length, "classes": logits.shape[2]}
    first = next((part for part in module.modules() if isinstance(part, nn.Linear)), None)
    if first is None:
        return {}
    logits = _output(module, torch.zeros(_ROWS, first.in_features, device=device))
    if logits is not None and logits.ndim == 2 and len(logits) == _ROWS:
        return {"kind": "features", "length": first.in_features, "classes": logits.shape[1]}
    return {}


@torch.no_grad()
def _output(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor | None:
    """Output of *module* for *inputs*; None: it does not take them, or returns no tensor."""
    try:
        output = module(inputs)
    except Exception:
        # user code, of which this asks whether it takes such inputs
        return None
    return output if isinstance(output, torch.Tensor) else None
