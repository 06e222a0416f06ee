"""The suite's other Python environments, as they are on this machine."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from distbench.core import registry
from distbench.core.case import CURRENT, Case
from distbench.core.errors import Mistake, SuiteError
from distbench.core.machine import Machine
from distbench.data.base import Source
from distbench.launchers.base import Launcher, Place
from distbench.suite import Suite
from distbench.suite.environments import KEY
from distbench.system.interpreters import Interpreter, UnfitError, interpreter


def with_environments(suite: Suite, machine: Machine) -> Machine:
    """*machine* with what each other environment of *suite* has.

    Raises:
        SuiteError: one of them can't run trials, or the launcher can't start any there; all mistakes.
    """
    if not suite.environments:
        return machine
    launcher: Launcher = registry.make("launchers", suite.launcher)
    if not launcher.takes_python:
        why = f"launcher {suite.launcher.name} starts ranks by the Python of its nodes alone; use local"
        raise SuiteError([suite.places.mistake((KEY,), why, suite.launcher.name)])
    wrong: list[Mistake] = []
    found: dict[str, Machine] = {}
    for name, path in suite.environments.items():
        try:
            found[name] = _seen_from(interpreter(Path(path)), machine)
        except UnfitError as error:
            wrong.append(suite.places.mistake((KEY, name), str(error), suite.tree[KEY][name]))
    if wrong:
        raise SuiteError(wrong)
    return dataclasses.replace(machine, environments=found)


def _seen_from(other: Interpreter, machine: Machine) -> Machine:
    beside = os.pathsep.join([str(Path(other.path).parent), os.environ.get("PATH", os.defpath)])
    return dataclasses.replace(
        machine,
        python=other.version,
        packages=dict(other.packages),
        prefix=other.prefix,
        deepspeed=other.deepspeed,
        has_ninja=shutil.which("ninja", path=beside) is not None,
    )


def unlike(data: Source, there: Machine, here: Machine) -> str | None:
    """Why *data* has other rows *there* than *here*, which would be another training; None if it has not."""
    if there.python == here.python or not data.is_of_python:
        return None
    return (
        f"the text that ships with Python differs between versions ({there.python} there, {here.python} "
        "here): give both the same by data: {text: {path: FILE}}"
    )


def place_of(suite: Suite, case: Case, place: Place) -> Place:
    """Where the processes of *case* start, which do so in *place* if the case does not say otherwise.

    Raises:
        UnfitError: its environment can't run trials; looked at once, so one that goes later fails at launch.
    """
    if case.environment == CURRENT:
        return place
    other = interpreter(Path(suite.environments[case.environment]))
    own = other.variables(case.device, place.environment.get("PYTHONPATH"))
    return dataclasses.replace(place, python=other.path, environment={**place.environment, **own})
