"""Plans of a suite for the user's own module, in the notation of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from distbench.core.units import join_words
from distbench.data.base import DataShape
from distbench.workloads._names import unknown_names
from distbench.workloads._stage import AbsentModule, PipelineCut

_LISTS = (nn.ModuleList, nn.ModuleDict)


def check_plans(
    module: nn.Module, tensor: Iterable[str], pipeline: Iterable[str] | None, shape: DataShape
) -> None:
    """Check that *module* has the modules that a ``tp_plan`` and a ``pp_plan`` name.

    Raises:
        ValueError: it does not, no single one has the layers, or a stage would take several tensors.
    """
    wrong = [f"tp_plan names {name}" for name in unknown_names(module, tensor)]
    if wrong := [*wrong, *(_problems(module, [*pipeline], shape) if pipeline is not None else ())]:
        raise ValueError("; ".join(wrong))


def pipeline_cut(module: nn.Module, pipeline: Iterable[str]) -> PipelineCut:
    """Pipeline cut of *module* by the modules that its ``pp_plan`` names."""
    names = [*pipeline]
    (container,) = _layer_containers(module, names)
    place = names.index(container)
    layers = (f"{container}.{name}" for name, _ in module.get_submodule(container).named_children())
    return PipelineCut(tuple(names[:place]), tuple(layers), tuple(names[place + 1 :]))


def planned_layers(module: nn.Module, pipeline: Iterable[str]) -> list[nn.Module]:
    """Layers of *module*, or of a stage of it, by its ``pp_plan``."""
    (container,) = _layer_containers(module, pipeline)
    return [
        layer for layer in module.get_submodule(container).children() if not isinstance(layer, AbsentModule)
    ]


def _problems(module: nn.Module, pipeline: list[str], shape: DataShape) -> Iterator[str]:
    if wrong := [f"pp_plan names {name}" for name in unknown_names(module, pipeline)]:
        yield from wrong
        return
    if len(lists := _layer_containers(module, pipeline)) != 1:
        found = f"it names {join_words(lists)}" if lists else "it names none"
        yield f"pp_plan must name one nn.ModuleList or nn.ModuleDict, the layers; {found}"
    if len(shape.inputs) > 1:
        inputs = join_words(shape.inputs)
        yield f"a stage takes one tensor, but kind = {shape.kind} has {inputs}; remove pp_plan"


def _layer_containers(module: nn.Module, names: Iterable[str]) -> list[str]:
    return [name for name in names if isinstance(module.get_submodule(name), _LISTS)]
