"""Layers of a module that are sharded as units of their own, and remarks on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from torch import nn

from distbench.strategies.torch_engine.modules import listed
from distbench.workloads.base import Workload
from distbench.workloads.weights import plain_name


def separate_layers(module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """Those of *layers* that share no parameter with another layer or with the rest of *module*.

    A parameter is gathered and freed with one unit, so FSDP (1 and 2) refuses or breaks a model in which two
    units share one: a layer with a tied embedding, for example, is sharded with everything outside the
    layers.
    """
    while shared := _shared(module, layers):
        sharing = {id(each) for _, of in shared for each in of}
        layers = [layer for layer in layers if id(layer) not in sharing]
    return layers


def merged_layers(module: nn.Module, layers: list[nn.Module], live: Collection[nn.Module]) -> list[str]:
    """Names of those of *layers* that are none of the *live* units of *module*."""
    chosen = _ids(layers) - _ids(live)
    return [plain_name(name) for name, part in module.named_modules() if id(part) in chosen]


def merged_layers_remark(
    module: nn.Module, layers: list[nn.Module], live: Collection[nn.Module]
) -> list[str]:
    """Sentence on why some of *layers* are none of the *live* units of *module*; empty if all are."""
    names, chosen = merged_layers(module, layers, live), _ids(layers) - _ids(live)
    if not names:
        return []
    shared = [name for name, of in _shared(module, layers) if _ids(of) & chosen]
    return [
        f"sharded with the rest of the model and not separately: {listed(names)}, because layers that "
        f"share a parameter ({listed(shared)}) can't be gathered separately"
    ]


def _ids(modules: Iterable[nn.Module]) -> set[int]:
    return {id(module) for module in modules}


def _shared(module: nn.Module, layers: list[nn.Module]) -> list[tuple[str, list[nn.Module]]]:
    """Parameters shared by several of *layers* and the rest of *module*, each with those that have it."""
    roots = [module, *layers]
    chosen, owners = {id(root) for root in roots}, defaultdict[int, dict[int, nn.Module]](dict)
    for root in roots:
        for parameter in _own_parameters(root, chosen):
            owners[id(parameter)][id(root)] = root
    names = {id(parameter): plain_name(name) for name, parameter in module.named_parameters()}
    return [(names[each], list(of.values())) for each, of in owners.items() if len(of) > 1]


def _own_parameters(part: nn.Module, chosen: set[int]) -> Iterator[nn.Parameter]:
    """Parameters of *part*, except those of *chosen* modules inside it."""
    yield from part.parameters(recurse=False)
    for child in part.children():
        if id(child) not in chosen:
            yield from _own_parameters(child, chosen)


def construction_remark(workload: Workload, memory: str) -> list[str]:
    """Sentence that a rank builds the full model in *memory* before sharding; empty if it does not."""
    if workload.on_meta:
        return []
    return [
        f"every rank constructs the whole model in {memory} and then shards it, so the build needs "
        "memory for a full replica there, because this kind of workload can't be constructed on the meta "
        "device"
    ]
