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
    accelerate_config,
    deepspeed_config,
    torch_script,
    torchtitan_py,
    torchtitan_toml,
    trainer_config,
)
from distbench.adopt.exported_case import ExportedCase, ExportedFiles, applicable, problems
from distbench.adopt.instructions import environment_note, multi_node_note
from distbench.adopt.pipeline_stages import stages_recorded
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, Case, PluginChoice
from distbench.core.errors import UsageError
from distbench.core.text import one_line

__all__ = ["FORMATS", "ExportedCase", "ExportedFiles", "export_case", "export_caveats", "supported_formats"]

FORMATS: dict[str, ModuleType] = {
    "deepspeed": deepspeed_config,
    "accelerate": accelerate_config,
    "transformers": trainer_config,
    "torch": torch_script,
    "torchtitan": torchtitan_py,
    "torchtitan-toml": torchtitan_toml,
}
"""Name -> module with ``problems``, the reasons why it can't express a case, and ``write``."""
_TITANS = (torchtitan_py, torchtitan_toml)


_NEEDS_MODULE_NAMES = (
    "only a plain torch script or torchtitan's configuration can express torch's tensor parallelism"
)
_CONTEXT_PARALLEL = "context parallelism is written for torchtitan only so far"
_AUTO_TP = (
    "it gives each rank different samples; DeepSpeed's AutoTP needs the same on all ranks that split a layer"
)
_PIPELINE = "only a plain torch script or torchtitan's configuration can split a model into pipeline stages"
_STAGES_UNKNOWN = (
    "its stages were split by layer times (split: time), and the layers of each are not in the record"
)
_COMPRESSED_GRADIENTS = "only a plain torch script can use DDP's hooks for PowerSGD and post-local SGD"
_USER_WORKLOAD = "only the user's own code says where its model is split, and adopt does not run it"
_SHARDED_OPTIMIZER = "only a plain torch script can use torch's ZeroRedundancyOptimizer"
_IN_BACKWARD = "no format can update parameters in the backward pass yet (optimizer_in_backward)"


def supported_formats(measured: ExportedCase) -> list[str]:
    """Formats that can express the measured case."""
    return [name for name in FORMATS if not _problems(name, measured)]


def _problems(format_: str, measured: ExportedCase) -> list[str]:
    if (measured.pipeline or measured.tensor_parallelism) and _is_user_workload(measured.case.workload):
        return [_USER_WORKLOAD]
    module = FORMATS[format_]
    of_format: list[str] = module.problems(measured)
    own = {
        # reasons that hold for every format come first; those that name other formats follow
        _STAGES_UNKNOWN: (
            measured.pipeline and measured.pipeline.split == "time" and not stages_recorded(measured)
        ),
        _IN_BACKWARD: getattr(measured.strategy, "optimizer_in_backward", False),
        _CONTEXT_PARALLEL: measured.context_parallelism and module not in _TITANS,
        _AUTO_TP: measured.uses_autotp and module in (accelerate_config, trainer_config),
        _PIPELINE: measured.pipeline and module not in (torch_script, *_TITANS),
        _NEEDS_MODULE_NAMES: measured.tensor_parallelism and module not in (torch_script, *_TITANS),
        _COMPRESSED_GRADIENTS: measured.ddp
        and measured.ddp.intended_difference
        and module is not torch_script,
        _SHARDED_OPTIMIZER: measured.ddp and measured.ddp.sharded_optimizer and module is not torch_script,
    }
    return [*problems(measured), *applicable(own), *of_format]


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
    for reason in applicable(sentences):
        raise UsageError(f"--skeleton: {reason}; leave it out")


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
    measured = replace(ExportedCase.of(case, effective), nodes=nodes)
    if parameters is None:
        measured = deepspeed_config.with_measured_sizes(measured)
    else:
        measured = deepspeed_config.with_sizes_for(measured, parameters)
    if reasons := _problems(format_, measured):
        raise UsageError(f"--as {format_}: {reasons[0]}{_alternatives(reasons[0], measured)}")
    if with_script:
        _check_skeleton(format_, measured)
    written: ExportedFiles = FORMATS[format_].write(measured)
    if case.environment != CURRENT_ENVIRONMENT:
        note = f"Measured in another Python environment: {environment_note(case)}"
        written = replace(written, notes=(*written.notes, note))
    if told := multi_node_note(measured, written.launch):
        written = replace(written, notes=(*told, *written.notes))
    if with_script:
        script = {torch_script.TRAINING_SCRIPT: torch_script.training_script(case)}
        written = replace(written, files={**written.files, **script})
    return written


def export_caveats(row: CaseSummary, run: RunAnalysis) -> list[str]:
    """Warnings about exporting a case of *run*, without its name."""
    failed = f"{row.failed} of {row.trials + row.failed} trials failed: {one_line(row.reason)}"
    known = {
        "not equivalent to its reference (--force)": row.differs,
        f"checked, but not measured ({one_line(row.reason)})": not row.measured,
        f"measured only on a noisy machine: {one_line(row.degraded)}": row.degraded,
        failed: row.measured and row.failed,
    }
    return [*applicable(known), *_work_differences(row, run)]


def _work_differences(row: CaseSummary, run: RunAnalysis) -> list[str]:
    """Known or possible differences in work between the live engine and its reference."""
    return [
        f"not {'' if finding.is_known else 'known to be '}the same work as its reference: "
        f"{one_line(str(finding))}"
        for finding in run.parity.findings.get(row.case.id, [])
    ]
