"""Linear layers that multiply in float8 (torchao's ``Float8Linear``): conversion and reading back."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from torch import nn

from distbench.core.case import Case, PrecisionConfig
from distbench.core.dtypes import FLOAT8_ALIGNMENT, Float8Recipe
from distbench.strategies.base import UnsupportedCase

if TYPE_CHECKING:
    from torchao.float8 import Float8LinearConfig


def convert_to_float8(case: Case, module: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """Convert the linear layers inside *layers* of *module* if *case* says so; return the layers.

    Embedding and output head are in none of the layers and stay unchanged: torchtitan leaves them out as
    well. So does a linear layer with a size that is no multiple of 16, which GPUs can't multiply.

    Raises:
        UnsupportedCase: there is nothing to convert.
    """
    if case.precision.float8 == "none":
        return layers
    from torchao.float8 import convert_to_float8_training

    chosen = {id(linear) for layer in layers for linear in layer.modules() if _is_convertible(linear)}
    if not chosen:
        raise UnsupportedCase(
            f"precision.float8 = {case.precision.float8}: no layer of the model has an nn.Linear whose "
            f"sizes are multiples of {FLOAT8_ALIGNMENT}, so float8 would have no effect; use precision: "
            "bf16"
        )
    # a layer may itself be a linear layer, and is then replaced by another object
    names = {id(part): name for name, part in module.named_modules()}
    convert_to_float8_training(
        module, module_filter_fn=lambda linear, _: id(linear) in chosen, config=_config(case.precision)
    )
    return [module.get_submodule(names[id(layer)]) for layer in layers]


def describe_float8(module: nn.Module) -> dict[str, Any]:
    """Recipe and number of the live module's float8 layers, and whether they only emulate float8.

    Empty if there are none; several recipes are joined with ``+``.
    """
    found = list(_float8_configs(module))
    if not found:
        return {}
    return {
        "float8": "+".join(sorted({_recipe(config) for config in found})),
        "float8_layers": len(found),
        "float8_emulated": any(config.emulate for config in found),
    }


def _is_convertible(module: nn.Module) -> bool:
    # a class with its own forward computes something else, which torchao would drop
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return False
    return all(size % FLOAT8_ALIGNMENT == 0 for size in (module.in_features, module.out_features))


def _config(precision: PrecisionConfig) -> Float8LinearConfig:
    from torchao.float8 import Float8LinearConfig

    recipe = Float8LinearConfig.from_recipe_name(precision.float8)
    return dataclasses.replace(recipe, emulate=precision.float8_emulated)


def _float8_configs(module: nn.Module) -> Iterator[Float8LinearConfig]:
    """Configurations of the float8 layers of *module*."""
    if "torchao.float8" not in sys.modules:
        return
    from torchao.float8.float8_linear import Float8Linear

    for part in module.modules():
        if isinstance(part, Float8Linear):
            yield part.config


def _recipe(config: Float8LinearConfig) -> str:
    """Name of the recipe of *config*; ``custom`` if it is none of torchao's."""
    emulate = config.emulate
    known = {
        name: _config(PrecisionConfig(compute="bf16", float8=name, float8_emulated=emulate))
        for name in get_args(Float8Recipe)
        if name != "none"
    }
    return next((name for name, recipe in known.items() if recipe == config), "custom")
