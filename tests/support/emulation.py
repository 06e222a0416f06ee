"""Checks of cases whose ranks are emulated in this process: what real ranks run, without their cost."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distbench.analysis.job_results import Verdict
from distbench.core import registry
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.dtypes import Dtype
from distbench.core.job import PlannedTrial
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig, TimeLimits
from distbench.ipc.trial_files import PhaseTimer, ProgressWriter, TrialInstructions
from distbench.jobs.equivalence import CheckSection, EquivalenceJob
from distbench.jobs.equivalence.results import EquivalenceResults
from distbench.record import Record
from support.records import measured

HERE = Path(__file__).parents[1]

DECODER = PluginChoice(
    "transformer",
    {"dim": 32, "depth": 1, "heads": 2, "kv_heads": 1, "ffn_dim": 48, "seq_len": 16, "tied": True},
)
"""The built-in transformer, small and with a tied embedding."""
BIASED = PluginChoice("user", {"model": "small:Small", "length": 16})
"""Two layers with biases, of which some gradients are within rounding of zero."""
CLASSIFIER = PluginChoice("mlp", {"hidden": 24})
KEEPING = PluginChoice("user", {"model": "odd:Keeping", "length": 16})
"""Has a buffer that the training uses and changes."""


def emulated(
    bug: str = "none",
    workload: PluginChoice = DECODER,
    compute: Dtype = "fp32",
    *,
    by: float = 0.0,
    seed: int = 1,
    optimizer: OptimizerConfig | None = None,
) -> Case:
    """A case of two emulated ranks with two micro-batches each; *by* is the size of its mistake."""
    data = PluginChoice("digits" if workload is CLASSIFIER else "text")
    label = f"emulated-{bug}" + (f"-{by:g}" if by else "")
    return Case(
        name=f"{label}/ws2/mb2/{compute}",
        label=label,
        strategy=PluginChoice("emulated", {"bug": bug, "by": by} if by else {"bug": bug}),
        workload=workload,
        data=data,
        world_size=2,
        device="cpu",
        batch=Batch(8, 2, 2),
        optimizer=optimizer or OptimizerConfig(weight_decay=0.1, clip_grad_norm=0.5),
        precision=PrecisionConfig(compute=compute, loss_scale=1024.0 if compute == "fp16" else None),
        activation_checkpointing="none",
        threads=1,
        seed=seed,
    )


class Laboratory:
    """Makes the trials of checks in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def verdicts(self, cases: Sequence[Case], check: CheckSection | None = None) -> dict[str, Verdict]:
        """Verdicts on *cases*, by label."""
        check = check or CheckSection()
        found = EquivalenceResults(EquivalenceJob()).judge(
            {"false_alarm": check.false_alarm}, self.records(cases, check)
        )
        return {case.label: found[case.id] for case in cases}

    def records(self, cases: Sequence[Case], check: CheckSection) -> list[Record]:
        """Records of all trials that *check* asks for."""
        machine = Machine("cpu", 2, {}, has_libaio=False, has_compiler=False)
        return [self._record(task) for task in EquivalenceJob().planned_trials(check, cases, machine)]

    def _record(self, task: PlannedTrial) -> Record:
        import torch

        from distbench.jobs.equivalence.ranks import run
        from distbench.strategies.base import RankContext
        from distbench.workloads import weights

        case, workload = task.case, registry.create_plugin("workloads", task.case.workload)
        model = "-".join(map(str, case.workload.options.values())).replace("/", "-")
        file = self._folder / f"{model}-{case.seed}-{case.precision.compute}.safetensors"
        if not file.exists():
            exact = case.initial_weights == "exact"
            weights.save_initial(workload, case.seed, file, case.precision.compute, exact=exact)
        trial = TrialInstructions("emulated", case, MeasureConfig(), TimeLimits(), [], str(file), task.job)
        torch.manual_seed(case.seed)
        setting = RankContext(case, workload, file, torch.device("cpu"), 0, 1, self._folder)
        left = run(trial, setting, PhaseTimer(ProgressWriter(self._folder / "progress")))
        made = dataclasses.replace(measured(case), job=task.job, values={}, samples={})
        return dataclasses.replace(made, tables=left.tables, effective=left.effective)


@contextmanager
def laboratory(folder: Path) -> Iterator[Laboratory]:
    """A process group of this process alone, and the plug-ins and models of the tests."""
    import gc
    import sys

    import torch
    import torch.distributed as dist

    # each training collects garbage, and what is imported by now is none
    gc.freeze()
    placed = {"WORLD_SIZE": "1", "GROUP_RANK": "0", "LOCAL_RANK": "0"}
    variables = {**placed, registry.PLUGIN_PATH_VARIABLE: str(HERE / "plugins")}
    before: dict[str, Any] = {name: os.environ.get(name) for name in variables}
    threads = torch.get_num_threads()
    os.environ.update(variables)
    sys.path.insert(0, str(HERE / "models"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield Laboratory(folder)
    finally:
        gc.unfreeze()
        dist.destroy_process_group()
        torch.set_num_threads(threads)
        sys.path.remove(str(HERE / "models"))
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
