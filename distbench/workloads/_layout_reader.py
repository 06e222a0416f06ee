"""Read the layout of a model that has plans; also a program of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads import weights
from distbench.workloads._stage import activation_shape
from distbench.workloads.layouts import ModelLayout

if TYPE_CHECKING:
    from distbench.workloads._planned_workload import PlannedWorkload


def read(request: str) -> ModelLayout:
    """Layout of the model of the workload in *request*, the JSON of a ``PluginChoice``."""
    workload: PlannedWorkload = registry.create_plugin("workloads", PluginChoice(**json.loads(request)))
    # the random numbers of a rank stay as without this
    with torch.random.fork_rng(devices=[]):
        module = weights.meta_module(workload)
    names = {id(part): name for name, part in module.named_modules()}
    shapes: dict[str, tuple[int, ...]] = {}
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if known := first.get(id(parameter)):
            tied[name] = known
        else:
            first[id(parameter)], shapes[name] = name, tuple(parameter.shape)
    layout = ModelLayout(
        parameters=shapes,
        tied=tied,
        linear=tuple(name for name, part in module.named_modules() if type(part) is nn.Linear),
        embeddings=tuple(name for name, part in module.named_modules() if _is_plain_embedding(part)),
        layers=tuple(names[id(layer)] for layer in workload.layers(module)),
        frozen=tuple(name for name, parameter in module.named_parameters() if not parameter.requires_grad),
        **workload.plan_fields(module),
    )
    return layout if layout.uncut else _with_pipeline_cut(workload, module, layout)


def _with_pipeline_cut(workload: PlannedWorkload, module: nn.Module, layout: ModelLayout) -> ModelLayout:
    """*layout* with the fields for a pipeline, or the reason why there can be none."""
    try:
        cut = workload.pipeline_cut(module)
        passed = activation_shape(module, cut, workload.shape)
    except ValueError as error:
        return replace(layout, uncut=str(error))
    return replace(layout, before=cut.before, after=cut.after, between=passed)


def _is_plain_embedding(part: nn.Module) -> bool:
    """True if *part* is an embedding whose rows are only looked up."""
    if type(part) is not nn.Embedding:
        return False
    return part.padding_idx is None and part.max_norm is None and not part.scale_grad_by_freq


def main() -> None:
    """Read a request from standard input; the last line printed is a layout, as JSON."""
    # an exception of a user's module or a configuration ends the process; its last line is the reason
    sys.stdout.write(f"{json.dumps(asdict(read(sys.stdin.read())))}\n")


if __name__ == "__main__":
    main()
