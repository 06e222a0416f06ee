"""Random numbers of a model that trains: seed them, find its dropout, and turn it off."""

import copy
import dataclasses
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.workloads import weights

_DROPOUT_KEY = re.compile(
    r"^(?!summary_).*(drop(out)?|drop_?path|layer_?drop|pdrop)(_?(p|prob|probability|rate|ratio))?$"
)
"""Names of probabilities, such as attention_dropout, resid_pdrop and drop_path_rate. Names with summary_ are
excluded: every GPT-2 configuration of transformers has them, for a head that few models have and whose
modules show its dropout."""


def seed_draws(context: RankContext, seed: int) -> None:
    """Seed the random numbers that the model draws from now on, for this rank's stream.

    Not by the sum of both: another seed would have the streams of this one, shifted by a rank.
    """
    (mixed,) = np.random.SeedSequence((seed, context.random_stream)).generate_state(1)
    torch.manual_seed(int(mixed))


@dataclass(frozen=True)
class _Probability:
    """A dropout probability of a module."""

    place: str
    owner: Any
    """The module, or its configuration."""
    key: str
    value: float

    def __str__(self) -> str:
        return f"{self.place}, p = {self.value:g}"


def without_dropout(context: RankContext) -> tuple[RankContext, str]:
    """*context* with a model without dropout, and a summary of what was turned off; empty: nothing.

    Ranks have rows of their own, so they would drop other elements than a single process.
    """
    found = list(_probabilities(weights.meta_module(context.workload)))
    if not found:
        return context, ""
    workload = copy.copy(context.workload)
    make = context.workload.module

    def module() -> nn.Module:
        made = make()
        for each in _probabilities(made):
            # a configuration may be frozen; the first step shows if the model still draws random numbers
            with suppress(AttributeError):
                setattr(each.owner, each.key, 0.0)
        return made

    # a workload is frozen, but nothing else uses this copy
    object.__setattr__(workload, "module", module)
    return dataclasses.replace(context, workload=workload), _summary(found)


def refuse_dropout(context: RankContext) -> None:
    """Raise UnsupportedCase if the model has dropout."""
    if found := list(_probabilities(weights.meta_module(context.workload))):
        raise UnsupportedCase(
            f"dropout ({_summary(found)}) drops different elements of a row if rows are divided "
            "differently among ranks, so trainings can't be compared; check: {dropout: off} checks "
            "the model without dropout"
        )


def _summary(found: list[_Probability]) -> str:
    return str(found[0]) + (f", and {len(found) - 1} more" if len(found) > 1 else "")


def _probabilities(module: nn.Module) -> Iterator[_Probability]:
    """Yield the dropout probabilities above 0 in *module* and in its configurations."""
    configurations: dict[int, tuple[str, Any]] = {}
    for name, part in module.named_modules():
        drops = any(word in type(part).__name__ for word in ("Drop", "StochasticDepth"))
        for key, value in _dropout_attributes(part, *(["p"] if drops else [])):
            yield _Probability(name if key == "p" else _dotted_name(name, key), part, key, value)
        for of, config in _configurations(getattr(part, "config", None), _dotted_name(name, "config")):
            configurations.setdefault(id(config), (of, config))
    for of, config in configurations.values():
        for key, value in _dropout_attributes(config):
            yield _Probability(_dotted_name(of, key), config, key, value)


def _dropout_attributes(owner: Any, *keys: str) -> list[tuple[str, float]]:
    """Attributes of *owner* that are a probability above 0: *keys*, and all with a name for dropout."""
    return [
        (key, value)
        for key, value in vars(owner).items()
        if (key in keys or _DROPOUT_KEY.search(key.lower())) and isinstance(value, float) and 0 < value <= 1
    ]


def _configurations(config: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield *config*, if it is a configuration object, and those nested in it."""
    if not type(config).__name__.endswith("Config"):
        return
    yield place, config
    for key, value in vars(config).items():
        yield from _configurations(value, f"{place}.{key}")


def _dotted_name(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
