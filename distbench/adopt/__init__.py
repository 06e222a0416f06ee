"""From pick to use: a measured case written down as the configuration that other tools take.

Pure functions of a case and of what its live engine told of itself; torch is never imported, and
what a format can't say is told, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from distbench.adopt import accelerate_yaml, deepspeed_json, torch_script, torchtitan_toml, trainer_json
from distbench.adopt.base import Adopted, Measured
from distbench.case import Case
from distbench.errors import UsageError

__all__ = ["FORMATS", "Adopted", "adopt", "formats_for"]

FORMATS: dict[str, ModuleType] = {
    "deepspeed": deepspeed_json,
    "accelerate": accelerate_yaml,
    "transformers": trainer_json,
    "torch": torch_script,
    "torchtitan": torchtitan_toml,
}
"""Name -> the module with its ``problem`` and ``write``."""


def formats_for(measured: Measured) -> list[str]:
    """Return the formats that can say what was measured."""
    return [name for name, module in FORMATS.items() if module.problem(measured) is None]


def adopt(format_: str, case: Case, effective: Mapping[str, Any]) -> Adopted:
    """Return *case* in a format of ``FORMATS``; *effective* is what its live engine told of itself.

    Raises:
        UsageError: the format can't say this case; the message names those that can.
    """
    measured, module = Measured.of(case, effective), FORMATS[format_]
    if (problem := module.problem(measured)) is not None:
        others = formats_for(measured)
        instead = f"; for this case: --as {' or '.join(others)}" if others else ""
        raise UsageError(f"--as {format_}: {problem}{instead}")
    written: Adopted = module.write(measured)
    return written
