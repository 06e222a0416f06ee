"""Sizes in elements that fit a model: the measured ones, or DeepSpeed's own for a different model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from distbench.adopt.base import ExportedCase
from distbench.core.units import format_number
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import DEEPSPEED_DEFAULTS, NVME_SIZES, optional_sizes

_SOURCE = "https://www.deepspeed.ai/docs/config-json"
_ZERO_IN_OLD_RECORDS = ("param_persistence_threshold", "max_reuse_distance")
"""Sizes that records of earlier versions have as 0 if the suite did not set them."""


def with_sizes_for(measured: ExportedCase, parameters: float) -> ExportedCase:
    """Set the sizes that the suite of *measured* left open for a model of *parameters* parameters.

    Each is DeepSpeed's default, and at most the size of the model, which no bucket can exceed. Sizes that
    the suite set stay as they are.
    """
    if not (zero := measured.zero):
        return measured
    sizes = {key: min(DEEPSPEED_DEFAULTS[key], int(parameters)) for key in _unset_sizes(zero)}
    about = (
        f"{_listed(sizes)}: not measured, but DeepSpeed's defaults, limited to the size of a model with "
        f"{format_number(parameters)} parameters ({_SOURCE}). They count elements, not bytes."
    )
    changes: dict[str, Any] = sizes
    strategy = dataclasses.replace(zero, **changes)
    # disk sizes are of the measured model; without them DeepSpeed's own apply
    effective = {key: value for key, value in measured.effective.items() if key not in NVME_SIZES}
    about_sizes = (about,) if sizes else ()
    return dataclasses.replace(measured, strategy=strategy, effective=effective, size_notes=about_sizes)


def with_measured_sizes(measured: ExportedCase) -> ExportedCase:
    """*measured* with a note on the sizes that fit only the measured model."""
    if not (zero := measured.zero):
        return measured
    sizes = {key: measured.resolved_size(key) for key in _unset_sizes(zero)}
    known = {key: size for key, size in sizes.items() if size is not None}
    count = measured.effective.get("parameters")
    model = f"of {format_number(count)} parameters " if type(count) is int else ""
    about = (
        f"{_listed(known)}: chosen for the model {model}that was measured. For a larger one, "
        "export with --for-parameters N, its number of parameters, such as 7e9."
    )
    return dataclasses.replace(measured, size_notes=(about,) if known else ())


def _unset_sizes(zero: Zero) -> list[str]:
    """Sizes that the suite didn't set, which depend on the model."""
    values = {key: getattr(zero, key) for key in optional_sizes(zero)}
    return [
        key for key, size in values.items() if size is None or (size == 0 and key in _ZERO_IN_OLD_RECORDS)
    ]


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{key} = {size:,}" for key, size in sizes.items())
