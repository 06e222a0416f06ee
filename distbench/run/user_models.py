"""Construct user models and open user datasets once, in a subprocess: this process imports none of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.units import format_duration
from distbench.ipc.launch_spec import WORKER_ARGUMENTS
from distbench.record.run_folder import write_json
from distbench.system.interpreters import make_python_path
from distbench.system.machine import is_installed
from distbench.system.processes import exit_text
from distbench.system.temporary import temporary_folder

_LIMIT_S = 120.0


def user_models(cases: Sequence[Case]) -> list[PluginChoice]:
    """The distinct workloads of *cases* that call the user's own code."""
    choices = {json.dumps([case.workload.name, case.workload.options]): case.workload for case in cases}
    return [each for each in choices.values() if registry.create_plugin("workloads", each).user_modules()]


def cases_with_user_data(cases: Sequence[Case]) -> list[Case]:
    """One of *cases* for each distinct dataset of the user, workload and global batch."""
    found = [case for case in cases if registry.create_plugin("data", case.data).user_modules()]
    return list({_dataset_key(case): case for case in reversed(found)}.values())[::-1]


def _dataset_key(case: Case) -> str:
    work = [case.data.options, case.workload.name, case.workload.options]
    return json.dumps([*work, case.seed, case.batch.global_batch_size])


@dataclass(frozen=True)
class ConstructionResult:
    """Result of constructing a model."""

    problem: str
    """Description of the error; empty: none."""
    shape: dict[str, Any]
    """Options of the workload ``user`` with which a forward pass gave logits; empty: none were found."""
    refused: dict[str, str]
    """Dtype of the computation -> reason why the model is not trained in it."""


@dataclass(frozen=True)
class RowResult:
    """Result of reading the first row of a dataset."""

    problem: str = ""
    """Description of the error; empty: none."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Options of the workload ``user`` that it decides; empty: none, or no dataset was named."""
    shift_labels: bool = False
    """True if its tokens have no labels, or are their own labels."""
    lengths: Sequence[int] = ()
    """Tokens of the shortest and the longest row; empty: not asked for, or they can't be read in advance."""


@dataclass(frozen=True)
class ConstructionResults:
    """Results of constructing models and of opening datasets, in the order in which they were requested."""

    models: list[ConstructionResult]
    dataset_problems: list[str]
    """Description of the error of each dataset; empty: none."""
    row: RowResult = field(default_factory=RowResult)


def construct_user_models(
    models: Sequence[PluginChoice],
    device: str,
    computes: Sequence[str],
    datasets: Sequence[Case] = (),
    dataset: str = "",
    *,
    lengths: bool = False,
) -> ConstructionResults:
    """Construct each of *models* once in a subprocess, and read the first row of each of *datasets*.

    Args:
        models: Workloads.
        device: Kind of device on which they would be trained.
        computes: Dtypes in which they would be trained.
        datasets: Cases with a dataset of the user.
        dataset: ``package.module:callable`` of a dataset whose first row decides the shape of the inputs of
            *models*; empty: what they accept decides it.
        lengths: Read all rows of *dataset* for their lengths.

    Raises:
        ConstructionError: there is no torch here, or the process that constructs them did not exit normally.
    """
    if not is_installed("torch"):
        raise ConstructionError("torch is not installed here")
    with temporary_folder() as scratch:
        file = scratch / "models.json"
        asked = [dataclasses.asdict(each) for each in models]
        more = {"device": device, "computes": list(computes), "datasets": [c.to_json() for c in datasets]}
        write_json(file, {"models": asked, "dataset": dataset, "lengths": lengths, **more})
        try:
            done = subprocess.run(
                [sys.executable, *WORKER_ARGUMENTS, "construct", str(file)],
                env={**os.environ, "PYTHONPATH": make_python_path()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConstructionError(f"their constructors exceeded {format_duration(_LIMIT_S)}") from error
        if done.returncode:
            raise ConstructionError(f"the process that constructed them {exit_text(done.returncode)}")
        answers = json.loads(file.with_suffix(".constructed").read_text())
        found = [ConstructionResult(**each) for each in answers["models"]]
        return ConstructionResults(found, answers["datasets"], RowResult(**answers["row"]))


class ConstructionError(Exception):
    """The models could not be constructed for a reason that is not their own."""
