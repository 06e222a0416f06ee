"""Export a measured case as configuration for other tools.

Pure functions of a case and of the effective settings its live engine reported. torch is never imported,
and settings that a format can't express are listed, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from distbench.adopt import (
    accelerate_config,
    deepspeed_config,
    torch_script,
    torchtitan_py,
    torchtitan_toml,
    trainer_config,
)
from distbench.adopt.exported_case import ExportedCase, ExportedFiles, problems
from distbench.adopt.instructions import environment_note, multi_node_note
from distbench.adopt.pipeline_stages import stages_recorded
from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, Case, PluginChoice
from distbench.core.errors import UsageError
from distbench.core.text import one_line

__all__ = ["FORMATS", "ExportedCase", "ExportedFiles", "export_case", "export_caveats", "supported_formats"]


class Exporter(Protocol):
    """A module that writes one format."""

    def problems(self, measured: ExportedCase) -> Iterator[str]:
        """Yield reasons why the format can't express the measured case."""

    def write(self, measured: ExportedCase) -> ExportedFiles:
        """The measured case in the format."""


FORMATS: dict[str, Exporter] = {
    "deepspeed": deepspeed_config,
    "accelerate": accelerate_config,
    "transformers": trainer_config,
    "torch": torch_script,
    "torchtitan": torchtitan_py,
    "torchtitan-toml": torchtitan_toml,
}


def supported_formats(measured: ExportedCase) -> list[str]:
    """Formats that can express the measured case."""
    return [name for name in FORMATS if not _problems(name, measured)]


def _problems(format_: str, measured: ExportedCase) -> list[str]:
    if (measured.pipeline or measured.tensor_parallelism) and _is_user_workload(measured.case.workload):
        return ["only the user's code defines how its model is split, and adopt does not run it"]
    exporter = FORMATS[format_]
    # reasons that hold for every format come first; those that name other formats follow
    return [*problems(measured), *_unsupported(exporter, measured), *exporter.problems(measured)]


def _unsupported(exporter: Exporter, measured: ExportedCase) -> Iterator[str]:
    """Yield reasons why the format of *exporter* can't express what few formats can."""
    ddp, pipeline = measured.ddp, measured.pipeline
    is_script, is_titan = exporter is torch_script, exporter in (torchtitan_py, torchtitan_toml)
    if pipeline and pipeline.split == "time" and not stages_recorded(measured):
        yield (
            "its stages were split by layer times (split: time), and the record does not contain the layers "
            "of each"
        )
    if getattr(measured.strategy, "optimizer_in_backward", False):
        yield "no format can update parameters in the backward pass yet (optimizer_in_backward)"
    if measured.context_parallelism and not is_titan:
        yield "context parallelism is supported for torchtitan only"
    if measured.uses_autotp and exporter in (accelerate_config, trainer_config):
        yield (
            "it gives each rank different samples; DeepSpeed's AutoTP needs the same on all ranks that split "
            "a layer"
        )
    if pipeline and not (is_script or is_titan):
        yield "only a plain torch script or torchtitan's configuration can split a model into pipeline stages"
    if measured.tensor_parallelism and not (is_script or is_titan):
        yield from _tensor_problems(measured, exporter)
    if ddp and ddp.intended_difference and not is_script:
        yield "only a plain torch script can use DDP's hooks for PowerSGD and post-local SGD"
    if ddp and ddp.sharded_optimizer and not is_script:
        yield "only a plain torch script can use torch's ZeroRedundancyOptimizer"


def _tensor_problems(measured: ExportedCase, exporter: Exporter) -> Iterator[str]:
    """Yield the reason why a format besides scripts and torchtitan can't split layers as the case does."""
    if exporter not in (accelerate_config, trainer_config):
        yield "DeepSpeed's file has no tensor parallelism of torch"
    elif not measured.is_split_by_plan:
        yield (
            "Accelerate and Trainer split layers by the plan of a model of transformers alone: workload "
            "huggingface with tp, without sequence_parallel and loss_parallel"
        )
    elif measured.is_mixed:
        yield "autocast was not tried with the split layers of transformers; the case computed in " + (
            measured.case.precision.compute
        )


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
    if measured.tensor_parallelism or measured.pipeline:
        raise UsageError(
            "--skeleton: its small model has none of the layers that this case splits; remove the option"
        )
    if measured.uses_autotp:
        raise UsageError(
            "--skeleton: its batches are different on every rank; DeepSpeed's AutoTP needs the same on all "
            "ranks that split a layer; remove the option"
        )


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
    written = FORMATS[format_].write(measured)
    if case.environment != CURRENT_ENVIRONMENT:
        note = f"Measured in another Python environment: {environment_note(case)}"
        written = replace(written, notes=(*written.notes, note))
    if node_notes := multi_node_note(measured, written.launch):
        written = replace(written, notes=(*node_notes, *written.notes))
    if with_script:
        script = {torch_script.TRAINING_SCRIPT: torch_script.training_script(case)}
        written = replace(written, files={**written.files, **script})
    return written


def export_caveats(row: CaseSummary, run: RunAnalysis) -> Iterator[str]:
    """Yield warnings about exporting a case of *run*, without its name."""
    if row.differs:
        yield "not equivalent to its reference (--force)"
    if not row.measured:
        yield f"checked, but not measured ({one_line(row.reason)})"
    if row.degraded:
        yield f"measured only on a noisy machine: {one_line(row.degraded)}"
    if row.measured and row.failed:
        yield f"{row.failed} of {row.trials + row.failed} trials failed: {one_line(row.reason)}"
    for finding in run.parity.findings.get(row.case.id, []):
        known = "" if finding.is_known else "known to be "
        yield f"not {known}the same work as its reference: {one_line(str(finding))}"
