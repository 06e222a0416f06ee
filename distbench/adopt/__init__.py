"""Export a measured case as configuration for other tools.

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
from distbench.adopt.base import ExportedCase, ExportedFiles
from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, Case, PluginChoice
from distbench.core.errors import UsageError

__all__ = ["FORMATS", "ExportedCase", "ExportedFiles", "export_case", "supported_formats"]

FORMATS: dict[str, ModuleType] = {
    "deepspeed": deepspeed_json,
    "accelerate": accelerate_yaml,
    "transformers": trainer_json,
    "torch": torch_script,
    "torchtitan": torchtitan_py,
    "torchtitan-toml": torchtitan_toml,
}
"""Name -> module with ``problems``, the reasons why it can't express a case, and ``write``."""
_TITANS = (torchtitan_py, torchtitan_toml)


_NEEDS_MODULE_NAMES = (
    "only a plain torch script or torchtitan's configuration can express torch's tensor parallelism"
)
_CONTEXT_PARALLEL = "context parallelism is supported for torchtitan only"
_AUTO_TP = (
    "it gives each rank different samples; DeepSpeed's AutoTP needs the same on all ranks that split a layer"
)
_PIPELINE = "only a plain torch script or torchtitan's configuration can split a model into pipeline stages"
_STAGES_UNKNOWN = (
    "its stages were split by layer times (split: time), and the record does not contain the layers of each"
)
_COMPRESSED_GRADIENTS = "only a plain torch script can use DDP's hooks for PowerSGD and post-local SGD"
_USER_WORKLOAD = "only the user's code defines how its model is split, and adopt does not run it"
_SHARDED_OPTIMIZER = "only a plain torch script can use torch's ZeroRedundancyOptimizer"
_IN_BACKWARD = "no format can update parameters in the backward pass yet (optimizer_in_backward)"


def supported_formats(measured: ExportedCase) -> list[str]:
    """Formats that can express the measured case."""
    return [name for name in FORMATS if not _problems(name, measured)]


def _problems(format_: str, measured: ExportedCase) -> list[str]:
    if (measured.pipeline or measured.tensor_parallelism) and _is_user_workload(measured.case.workload):
        return [_USER_WORKLOAD]
    module = FORMATS[format_]
    problems: list[str] = module.problems(measured)
    own = {
        # reasons that hold for every format come first; those that name other formats follow
        _STAGES_UNKNOWN: (
            measured.pipeline
            and measured.pipeline.split == "time"
            and not _pipeline_stages.stages_recorded(measured)
        ),
        _IN_BACKWARD: getattr(measured.strategy, "optimizer_in_backward", False),
        _CONTEXT_PARALLEL: measured.context_parallelism and module not in _TITANS,
        _AUTO_TP: measured.uses_autotp and module in (accelerate_yaml, trainer_json),
        _PIPELINE: measured.pipeline and module not in (torch_script, *_TITANS),
        _NEEDS_MODULE_NAMES: measured.tensor_parallelism and module not in (torch_script, *_TITANS),
        _COMPRESSED_GRADIENTS: measured.ddp
        and measured.ddp.intended_difference
        and module is not torch_script,
        _SHARDED_OPTIMIZER: measured.ddp and measured.ddp.sharded_optimizer and module is not torch_script,
    }
    return [*base.problems(measured), *base.applicable(own), *problems]


def _is_user_workload(workload: PluginChoice) -> bool:
    """True if a reader of a record would have to import this workload to learn more about the model."""
    cls = registry.built_in_plugins("workloads").get(workload.name)
    return cls is None or bool(cls(**workload.options).user_modules())


def _alternatives(reason: str, measured: ExportedCase) -> str:
    """Text on formats that can express a case if one can't for *reason*; if none can, their reasons."""
    if others := supported_formats(measured):
        return f"; for this case use --as {' or '.join(others)}"
    by_reason: dict[str, list[str]] = {}
    for name in FORMATS:
        by_reason.setdefault(_problems(name, measured)[0], []).append(name)
    by_reason.pop(reason)
    return "".join(f"; neither can --as {' or '.join(names)}: {other}" for other, names in by_reason.items())


def _check_skeleton(format_: str, measured: ExportedCase) -> None:
    if FORMATS[format_] is not torch_script:
        raise UsageError(f"--skeleton: only --as torch has a training script, not --as {format_}")
    sentences = {
        "its small model has none of the layers that this case splits": measured.tensor_parallelism
        or measured.pipeline,
        "its batches are different on every rank; DeepSpeed's AutoTP needs the same on all ranks that split "
        "a layer": measured.uses_autotp,
    }
    for reason in base.applicable(sentences):
        raise UsageError(f"--skeleton: {reason}; remove the option")


def export_case(
    format_: str,
    case: Case,
    effective: Mapping[str, Any],
    *,
    parameters: float | None = None,
    with_script: bool = False,
    nodes: int = 1,
) -> ExportedFiles:
    """Export *case* in a format of ``FORMATS``, given the *effective* settings its live engine reported.

    Args:
        parameters: Size of the model for sizes in elements; None: that of the measured one.
        with_script: Add a training script that runs as is; only ``torch`` has one.
        nodes: Number of nodes that the ranks were on.

    Raises:
        UsageError: the format can't express this case; the message names those that can.
    """
    measured, module = replace(ExportedCase.of(case, effective), nodes=nodes), FORMATS[format_]
    measured = (
        sizes.with_measured_sizes(measured)
        if parameters is None
        else sizes.with_sizes_for(measured, parameters)
    )
    if problems := _problems(format_, measured):
        raise UsageError(f"--as {format_}: {problems[0]}{_alternatives(problems[0], measured)}")
    if with_script:
        _check_skeleton(format_, measured)
    written: ExportedFiles = module.write(measured)
    if case.environment != CURRENT_ENVIRONMENT:
        note = f"Measured in another Python environment: {base.environment_note(case)}"
        written = replace(written, notes=(*written.notes, note))
    if told := base.multi_node_note(measured, written.launch):
        written = replace(written, notes=(*told, *written.notes))
    if with_script:
        return replace(written, files={**written.files, skeleton.FILE: skeleton.training_script(case)})
    return written
