"""torch.compile, block by block: the layers of a module compiled, and reading it back."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from distbench.core.case import Case

_MARK = "_distbench_mode"
"""Name under which a compiled function keeps its mode, which torch doesn't show."""


def compile_layers(case: Case, layers: list[nn.Module]) -> None:
    """Compile each of *layers* if *case* says so; equal ones share their code.

    Their ``forward`` is compiled and not the call, so that the hooks by which engines gather and reduce
    stay outside of the compiled code.
    """
    if case.compile == "none":
        return
    for layer in layers:
        compiled = torch.compile(layer.forward, mode=case.compile)
        setattr(compiled, _MARK, case.compile)
        layer.forward = compiled


def describe_compilation(module: nn.Module) -> dict[str, Any]:
    """How the live module was compiled, in how many layers, and graph breaks; empty if it was not to be.

    What torch can't trace it runs as it is written, so a mode is told only if there is code.
    """
    modes = [mode for layer in module.modules() if (mode := getattr(vars(layer).get("forward"), _MARK, None))]
    graphs, breaks = _dynamo_counters()
    if not modes:
        return {}
    if not graphs:
        return {"compile": "none"}
    return {"compile": "+".join(sorted(set(modes))), "compiled_layers": len(modes), "graph_breaks": breaks}


def _dynamo_counters() -> tuple[int, int]:
    """Graphs that torch has compiled in this process, and graph breaks."""
    if "torch._dynamo" not in sys.modules:
        return 0, 0
    counters = sys.modules["torch._dynamo"].utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
