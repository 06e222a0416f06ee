"""Plans that a suite has for a module of one's own, in the notation of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from distbench.core.units import list_text
from distbench.data.base import Shape
from distbench.workloads._names import unknown
from distbench.workloads._stage import Absent, Cut

_LISTS = (nn.ModuleList, nn.ModuleDict)


def check(module: nn.Module, tensor: Iterable[str], pipeline: Iterable[str] | None, shape: Shape) -> None:
    """See that the modules that a ``tp_plan`` and a ``pp_plan`` name are those of *module*.

    Raises:
        ValueError: they are not, or no single one has the layers.
    """
    wrong = [f"tp_plan names {name}" for name in unknown(module, tensor)]
    if wrong := [*wrong, *(_problems(module, [*pipeline], shape) if pipeline is not None else ())]:
        raise ValueError("; ".join(wrong))


def cut_of(module: nn.Module, pipeline: Iterable[str]) -> Cut:
    """Where *module* is cut into stages by the modules that its ``pp_plan`` names."""
    names = [*pipeline]
    (container,) = _lists(module, names)
    place = names.index(container)
    layers = (f"{container}.{name}" for name, _ in module.get_submodule(container).named_children())
    return Cut(tuple(names[:place]), tuple(layers), tuple(names[place + 1 :]))


def layers_of(module: nn.Module, pipeline: Iterable[str]) -> list[nn.Module]:
    """Layers of *module*, or of a stage of it, by its ``pp_plan``."""
    (container,) = _lists(module, pipeline)
    return [layer for layer in module.get_submodule(container).children() if not isinstance(layer, Absent)]


def _problems(module: nn.Module, pipeline: list[str], shape: Shape) -> Iterator[str]:
    if wrong := [f"pp_plan names {name}" for name in unknown(module, pipeline)]:
        yield from wrong
        return
    if len(lists := _lists(module, pipeline)) != 1:
        found = f"it names {list_text(lists)}" if lists else "it names none"
        yield f"pp_plan must name one nn.ModuleList or nn.ModuleDict, the layers; {found}"
    if len(shape.inputs) > 1:
        inputs = list_text(shape.inputs)
        yield f"a stage takes one tensor, and kind = {shape.kind} has {inputs}; remove pp_plan"


def _lists(module: nn.Module, names: Iterable[str]) -> list[str]:
    return [name for name in names if isinstance(module.get_submodule(name), _LISTS)]
