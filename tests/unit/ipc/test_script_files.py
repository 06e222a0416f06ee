"""Settings of a measured script: they reach each process, with the paths that it had."""

import os

import pytest

from distbench.core.errors import RecordError
from distbench.ipc.script_files import INJECTED_FOLDER, SETTINGS_VARIABLE, ScriptSettings


def test_settings_reach_a_process_by_its_variables():
    settings = ScriptSettings("/runs/1", warmup=3, steps=7, profile_steps=0, stops=False)
    variables = settings.variables({"PYTHONPATH": "/mine"})
    assert ScriptSettings.read(variables) == settings
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(INJECTED_FOLDER), "/mine"]
    assert settings.variables({})["PYTHONPATH"] == str(INJECTED_FOLDER)
    assert (INJECTED_FOLDER / "sitecustomize.py").is_file()


def test_a_process_without_settings_is_not_measured():
    assert ScriptSettings.read({}) is None
    with pytest.raises(RecordError, match="steps"):
        ScriptSettings.read({SETTINGS_VARIABLE: '{"folder": "/runs/1", "steps": "many"}'})
