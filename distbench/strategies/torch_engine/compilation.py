"""torch.compile, block by block: compile the layers of a module, and read the result back."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from distbench.core.case import Case

_MARK = "_distbench_mode"
"""Attribute of a compiled function for its mode, which torch doesn't expose."""


def compile_layers(case: Case, layers: list[nn.Module]) -> None:
    """Compile each of *layers* if *case* says so; equal ones share their code.

    Their ``forward`` is compiled, not the call, so that the hooks by which engines gather and reduce stay
    outside of the compiled code.
    """
    if case.compile == "none":
        return
    for layer in layers:
        compiled = torch.compile(layer.forward, mode=case.compile)
        setattr(compiled, _MARK, case.compile)
        layer.forward = compiled


def describe_compilation(module: nn.Module) -> dict[str, Any]:
    """Mode, number of compiled layers and graph breaks of the live module; empty if compile is off.

    torch runs what it cannot trace eagerly, so the mode is reported only if code was compiled.
    """
    modes = [mode for layer in module.modules() if (mode := getattr(vars(layer).get("forward"), _MARK, None))]
    graphs, breaks = _dynamo_counters()
    if not modes:
        return {}
    if not graphs:
        return {"compile": "none"}
    return {"compile": "+".join(sorted(set(modes))), "compiled_layers": len(modes), "graph_breaks": breaks}


def _dynamo_counters() -> tuple[int, int]:
    """Number of graphs that torch has compiled in this process, and number of graph breaks."""
    if "torch._dynamo" not in sys.modules:
        return 0, 0
    counters = sys.modules["torch._dynamo"].utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
