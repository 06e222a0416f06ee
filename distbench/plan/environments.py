"""The suite's other Python environments, as they are on this machine."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, Case
from distbench.core.errors import SuiteError, SuiteMistake
from distbench.core.machine import Machine
from distbench.data.base import DataSource
from distbench.ipc.launch_spec import PythonTarget
from distbench.launchers.base import Launcher
from distbench.suite import Suite
from distbench.suite.cross_checks import ENVIRONMENTS_KEY
from distbench.system.interpreters import Interpreter, InterpreterError, inspect_interpreter


def detect_environments(suite: Suite, machine: Machine) -> Machine:
    """Return *machine* with facts of each other environment of *suite*.

    Raises:
        SuiteError: one of them can't run trials, or the launcher can't start any there; all mistakes.
    """
    if not suite.environments:
        return machine
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    if not launcher.supports_environments:
        why = f"launcher {suite.launcher.name} can't use another Python than that of its nodes; use local"
        raise SuiteError([suite.source_map.mistake((ENVIRONMENTS_KEY,), why, suite.launcher.name)])
    wrong: list[SuiteMistake] = []
    found: dict[str, Machine] = {}
    for name, path in suite.environments.items():
        try:
            found[name] = _machine_of_interpreter(inspect_interpreter(Path(path)), machine)
        except InterpreterError as error:
            wrong.append(
                suite.source_map.mistake(
                    (ENVIRONMENTS_KEY, name), str(error), suite.tree[ENVIRONMENTS_KEY][name]
                )
            )
    if wrong:
        raise SuiteError(wrong)
    return dataclasses.replace(machine, environments=found)


def _machine_of_interpreter(other: Interpreter, machine: Machine) -> Machine:
    search_path = os.pathsep.join([str(Path(other.executable).parent), os.environ.get("PATH", os.defpath)])
    return dataclasses.replace(
        machine,
        python=other.version,
        packages=dict(other.packages),
        prefix=other.prefix,
        deepspeed=other.deepspeed,
        has_ninja=shutil.which("ninja", path=search_path) is not None,
    )


def data_difference(data: DataSource, there: Machine, here: Machine) -> str | None:
    """Describe how the data of two environments differs; None if it is the same.

    With different rows it would be a different training.
    """
    if there.python == here.python or not data.depends_on_python_version:
        return None
    return (
        f"the text that ships with Python differs between versions ({there.python} there, {here.python} "
        "here): give both the same text with data: {text: {path: FILE}}"
    )


def launch_place(suite: Suite, case: Case, target: PythonTarget) -> PythonTarget:
    """Environment in which the processes of *case* start; *target* by default.

    Raises:
        InterpreterError: its environment can't run trials. It is checked at once, so one that disappears
            later fails at launch.
    """
    if case.environment == CURRENT_ENVIRONMENT:
        return target
    other = inspect_interpreter(Path(suite.environments[case.environment]))
    own = other.environment(case.device, target.environment.get("PYTHONPATH"))
    return dataclasses.replace(target, python=other.executable, environment={**target.environment, **own})
