"""Module of a rank: load it, find its parts by name, prepare it for its case, and read it back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from distbench.core.case import Case
from distbench.core.dtypes import SELECTIVE_CHECKPOINT_OPS
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.torch_engine.float8 import convert_to_float8
from distbench.strategies.torch_engine.forwards import Forward, change_forward, compute_in
from distbench.strategies.torch_engine.readback import dtype_name
from distbench.workloads import batch_norm
from distbench.workloads._names import unknown_names
from distbench.workloads.base import Workload
from distbench.workloads.weights import DTYPES, load_module

T = TypeVar("T")

_SAVED_OPERATIONS = [getattr(torch.ops.aten, name).default for name in SELECTIVE_CHECKPOINT_OPS]
_CHECKPOINT_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, _SAVED_OPERATIONS)},
}
_CHECKPOINT_MARK = "_distbench_recomputes"
"""Attribute of a forward pass with the kind of its recomputation."""
_COMPILE_MARK = "_distbench_mode"
"""Attribute of a compiled function for its mode, which torch doesn't expose."""
_MAX_LISTED = 4
"""Maximum number of names in a list of a message."""


def load_plain_module(context: RankContext) -> tuple[nn.Module, list[nn.Module]]:
    """Full module with its weights on the device, in its master dtype, and its layers."""
    master = DTYPES[context.case.precision.master]
    module = load_module(context.workload, context.weights_file, context.device, master)
    return module, prepare_module(context, module)


def prepare_module(context: RankContext, module: nn.Module) -> list[nn.Module]:
    """Prepare *module*, which is in its master dtype, to compute as its case requests; return its layers."""
    precision = context.case.precision
    layers = _convert_to_float8(context.case, module, context.workload.layers(module))
    if precision.compute != precision.master:
        # layers before the full module, which casts everything outside of them
        for part in (*layers, module):
            compute_in(part, DTYPES[precision.compute])
    return _checkpoint_and_compile(context.case, layers)


def prepare_layers(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module* as *case* requests them: float8, recomputation, and compilation of both.

    For a module that its framework casts.
    """
    return _checkpoint_and_compile(case, _convert_to_float8(case, module, layers))


def _convert_to_float8(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """*layers* inside *module*, each once, in float8 if *case* requests it.

    Raises:
        UnsupportedCase: the module has layers that its device can't compute, or none to convert.
    """
    if case.device == "cpu":
        batch_norm.check_computable(module, case.precision.compute)
    # a layer that is called several times is one layer
    return convert_to_float8(case, module, list(dict.fromkeys(layers)))


def _checkpoint_and_compile(case: Case, layers: list[nn.Module]) -> list[nn.Module]:
    checkpoint_layers(case, layers)
    compile_layers(case, layers)
    return layers


class ComputeProbe:
    """Probe dtype and batch size in the first forward pass."""

    def __init__(self, module: nn.Module, layers: list[nn.Module]) -> None:
        self.dtype: str | None = None
        self.samples: int | None = None
        self.positions: int | None = None
        """Number of positions of each sample, if a layer's output has any."""
        self._hooks = [
            # a layer may arrange samples differently, such as all positions of all samples in one dimension
            module.register_forward_pre_hook(self._observe_inputs, with_kwargs=True),
            # the first that runs: a model may skip layers, depending on the data
            *(layer.register_forward_hook(self._observe_layer) for layer in layers or [module]),
        ]

    def _observe_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        # a batch that is an object of the model's own can't be inspected
        self.samples = next((each.shape[0] for each in _tensors((args, kwargs)) if each.ndim), None)

    def _observe_layer(self, module: nn.Module, args: Any, output: Any) -> None:
        tensor = next((each for each in _tensors(output) if each.is_floating_point()), None)
        if tensor is not None:
            self.dtype = dtype_name([tensor.dtype])
            self.positions = tensor.shape[1] if tensor.ndim > 2 else None
            self.samples = tensor.shape[0] if self.samples is None and tensor.ndim else self.samples
        for hook in self._hooks:
            hook.remove()


def run_evaluation(module: nn.Module, score: Callable[[nn.Module], T]) -> T:
    """``score(module)``, with *module* in evaluation mode and without gradients."""
    module.eval()
    try:
        with torch.no_grad():
            return score(module)
    finally:
        module.train()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def checkpoint_layers(case: Case, layers: list[nn.Module]) -> None:
    """Make *layers* recompute as *case* specifies."""
    kind = case.activation_checkpointing
    if kind != "none":
        for layer in layers:
            change_forward(layer, partial(_checkpointed_forward, kind=kind))


def describe_checkpointing(module: nn.Module) -> dict[str, Any]:
    """Kind of recomputation of the live module, and number of layers; several kinds are joined with ``+``."""
    kinds = [
        kind
        for layer in module.modules()
        if (kind := getattr(vars(layer).get("forward"), _CHECKPOINT_MARK, ""))
    ]
    return {
        "activation_checkpointing": "+".join(sorted(set(kinds))) or "none",
        "checkpointed_layers": len(kinds),
    }


def _checkpointed_forward(forward: Forward, _module: nn.Module, kind: str) -> Forward:
    # torch.compile accepts no context that is looked up in the call
    run: Any = partial(checkpoint, use_reentrant=False, **_CHECKPOINT_OPTIONS[kind])

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return run(forward, *args, **kwargs)

    setattr(recomputed, _CHECKPOINT_MARK, kind)
    return recomputed


def compile_layers(case: Case, layers: list[nn.Module]) -> None:
    """Compile each of *layers* if *case* says so; equal ones share their code.

    Their ``forward`` is compiled, not the call, so that the hooks by which engines gather and reduce stay
    outside of the compiled code.
    """
    if case.compile == "none":
        return
    for layer in layers:
        compiled = torch.compile(layer.forward, mode=case.compile)
        setattr(compiled, _COMPILE_MARK, case.compile)
        layer.forward = compiled


def describe_compilation(module: nn.Module) -> dict[str, Any]:
    """Mode, number of compiled layers and graph breaks of the live module; empty if compile is off.

    torch runs what it cannot trace eagerly, so the mode is reported only if code was compiled.
    """
    modes = [
        mode
        for layer in module.modules()
        if (mode := getattr(vars(layer).get("forward"), _COMPILE_MARK, None))
    ]
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


def check_module_names(module: nn.Module, workload: Workload, names: Iterable[str]) -> None:
    """Check that each of the *names* that *workload* declares names a module of the full *module*.

    Raises:
        UnsupportedCase: some name no module, so they would have no effect.
    """
    if wrong := [*unknown_names(module, names)]:
        raise UnsupportedCase("; ".join(f"{type(workload).__name__} declares {name}" for name in wrong))


def listed(names: Sequence[str]) -> str:
    """*names* with commas, and the number of those left out if there are too many."""
    left = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {left:,} more" if left > 0 else "")
