"""From pick to use: a measured case exported as configuration for other tools.

Pure functions of a case and of the effective settings its live engine reported. torch is never imported,
and settings that a format can't express are listed, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from distbench.adopt import (
    _pipeline_stages,
    accelerate_yaml,
    base,
    deepspeed_json,
    sizes,
    skeleton,
    torch_script,
    torchtitan_py,
    torchtitan_toml,
    trainer_json,
)
from distbench.adopt.base import Adopted, Measured
from distbench.core import registry
from distbench.core.case import CURRENT, Case, Choice
from distbench.core.errors import UsageError

__all__ = ["FORMATS", "Adopted", "Measured", "adopt", "formats_for"]

FORMATS: dict[str, ModuleType] = {
    "deepspeed": deepspeed_json,
    "accelerate": accelerate_yaml,
    "transformers": trainer_json,
    "torch": torch_script,
    "torchtitan": torchtitan_py,
    "torchtitan-toml": torchtitan_toml,
}
"""Name -> module with ``problems``, why it can't express a case, and ``write``."""
_TITANS = (torchtitan_py, torchtitan_toml)


_BY_NAMES = "only a plain torch script or torchtitan's configuration can express torch's tensor parallelism"
_CONTEXT = "context parallelism is written for torchtitan only so far"
_AUTO_TP = (
    "it gives each rank different samples; DeepSpeed's AutoTP needs the same on all ranks that split a layer"
)
_PIPELINE = "only a plain torch script or torchtitan's configuration can split a model into pipeline stages"
_TIMED = "its stages were split by layer times (split: time), and the layers of each are not in the record"
_LOSSY = "only a plain torch script can use DDP's hooks for PowerSGD and post-local SGD"
_OF_THE_USER = "only the user's own code says where its model is split, and adopt does not run it"
_ZERO_1 = "only a plain torch script can use torch's ZeroRedundancyOptimizer"
_IN_BACKWARD = "no format can update parameters in the backward pass yet (optimizer_in_backward)"


def formats_for(measured: Measured) -> list[str]:
    """Formats that can express the measured case."""
    return [name for name in FORMATS if not _problems(name, measured)]


def _problems(format_: str, measured: Measured) -> list[str]:
    if (measured.pipeline or measured.cut) and _is_of_the_user(measured.case.workload):
        return [_OF_THE_USER]
    module = FORMATS[format_]
    problems: list[str] = module.problems(measured)
    own = {
        # of every format: what names others as able comes after them
        _TIMED: (
            measured.pipeline
            and measured.pipeline.split == "time"
            and not _pipeline_stages.knows_stages(measured)
        ),
        _IN_BACKWARD: getattr(measured.strategy, "optimizer_in_backward", False),
        _CONTEXT: measured.context and module not in _TITANS,
        _AUTO_TP: measured.shares_rows and module in (accelerate_yaml, trainer_json),
        _PIPELINE: measured.pipeline and module not in (torch_script, *_TITANS),
        _BY_NAMES: measured.cut and module not in (torch_script, *_TITANS),
        _LOSSY: measured.ddp and measured.ddp.by_design and module is not torch_script,
        _ZERO_1: measured.ddp and measured.ddp.sharded_optimizer and module is not torch_script,
    }
    return [*base.problems(measured), *base.applying(own), *problems]


def _is_of_the_user(workload: Choice) -> bool:
    """Whether a reader of a record would import what that names, to learn more of the model."""
    cls = registry.built_in("workloads").get(workload.name)
    return cls is None or bool(cls(**workload.options).user_modules())


def _instead(reason: str, measured: Measured) -> str:
    """What can express a case that a format can't, for that *reason*; if nothing can, why not."""
    if others := formats_for(measured):
        return f"; for this case use --as {' or '.join(others)}"
    by_reason: dict[str, list[str]] = {}
    for name in FORMATS:
        by_reason.setdefault(_problems(name, measured)[0], []).append(name)
    by_reason.pop(reason)
    return "".join(f"; neither can --as {' or '.join(names)}: {other}" for other, names in by_reason.items())


def _check_skeleton(format_: str, measured: Measured) -> None:
    if FORMATS[format_] is not torch_script:
        raise UsageError(f"--skeleton: only --as torch has a training script, not --as {format_}")
    sentences = {
        "its small model has none of the layers that this case splits": measured.cut or measured.pipeline,
        "its batches are different on every rank; DeepSpeed's AutoTP needs the same on all ranks that split "
        "a layer": measured.shares_rows,
    }
    for reason in base.applying(sentences):
        raise UsageError(f"--skeleton: {reason}; leave it out")


def adopt(
    format_: str,
    case: Case,
    effective: Mapping[str, Any],
    *,
    parameters: float | None = None,
    with_script: bool = False,
    nodes: int = 1,
) -> Adopted:
    """*case* in a format of ``FORMATS``, given the *effective* settings its live engine reported.

    Args:
        parameters: Size of the model to write sizes in elements for; None: that of the measured one.
        with_script: Add a training script that runs as it stands; only ``torch`` has one.
        nodes: Those that the ranks were on.

    Raises:
        UsageError: the format can't express this case; the message names those that can.
    """
    measured, module = replace(Measured.of(case, effective), nodes=nodes), FORMATS[format_]
    measured = sizes.fitted(measured) if parameters is None else sizes.rescaled(measured, parameters)
    if problems := _problems(format_, measured):
        raise UsageError(f"--as {format_}: {problems[0]}{_instead(problems[0], measured)}")
    if with_script:
        _check_skeleton(format_, measured)
    written: Adopted = module.write(measured)
    if case.environment != CURRENT:
        note = f"Measured in another Python environment: {base.elsewhere(case)}"
        written = replace(written, notes=(*written.notes, note))
    if told := base.on_nodes(measured, written.launch):
        written = replace(written, notes=(*told, *written.notes))
    if with_script:
        return replace(written, files={**written.files, skeleton.FILE: skeleton.text(case)})
    return written
