"""Tries the models of the user's own in a process of their own: this one imports neither them nor torch."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from distbench import registry
from distbench.case import Case, Choice
from distbench.interpreter import python_path
from distbench.processes import ending
from distbench.record.store import write_json
from distbench.temporary import temporary_folder
from distbench.units import duration_text

_LIMIT_S = 120.0


def user_models(cases: Sequence[Case]) -> list[Choice]:
    """The distinct workloads of *cases* that call code of the user's own."""
    choices = {json.dumps([case.workload.name, case.workload.options]): case.workload for case in cases}
    return [each for each in choices.values() if registry.make("workloads", each).user_modules()]


def problems(models: Sequence[Choice]) -> list[str]:
    """What is wrong with the constructor of each of *models*; empty: nothing, or it can't be told here.

    Raises:
        UntriedError: the process that constructs them did not end as it should.
    """
    with temporary_folder() as scratch:
        file = scratch / "models.json"
        write_json(file, [dataclasses.asdict(each) for each in models])
        try:
            done = subprocess.run(
                [sys.executable, "-m", "distbench.worker", "construct", str(file)],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UntriedError(f"their constructors took more than {duration_text(_LIMIT_S)}") from error
        if done.returncode:
            raise UntriedError(f"the process that constructed them {ending(done.returncode)}")
        told: list[str] = json.loads(file.with_suffix(".problems").read_text())
        return told


class UntriedError(Exception):
    """Models could not be tried."""
