"""``distbench gate --baseline REF -- COMMAND``: gate a script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distbench.api.progress import observe_progress
from distbench.core.errors import UsageError
from distbench.gate.script_gate import ScriptGate, script_arms
from distbench.gate.verdicts import GateResult
from distbench.run.scripts.measurement import ScriptPlan
from distbench.run.scripts.script_process import check_command
from distbench.suite.gate import GateRules, parse_gate
from distbench.suite.yaml_reader import parse_value

_MEASURED = {"warmup": 10, "steps": 50, "profile_steps": 3}
"""Keys of ``measure`` that apply to a script, and their defaults, in the order of ``ScriptPlan``."""


def command_after_dashes(words: Sequence[str]) -> tuple[str, ...] | None:
    """Words of the command line *words* after ``--``; None: it has no ``--``."""
    return tuple(words[list(words).index("--") + 1 :]) if "--" in words else None


def gate_script(
    command: tuple[str, ...],
    words: Sequence[str],
    out: Path,
    *,
    baseline: str,
    settings: Sequence[str],
    self_test: bool,
    quiet: bool,
) -> GateResult:
    """Gate the script that *command* starts against that of *baseline*.

    Raises:
        UsageError: an option does not apply to a script, or a setting is none of its rules.
    """
    check_command(command, "gate")
    rules, measured = _rules(settings)
    warmup, steps, profiled = measured
    plan = ScriptPlan(command, warmup, steps, profiled, output_to_stderr=True)
    with script_arms(command, baseline, self_test=self_test) as arms:
        gate = ScriptGate(plan, arms, rules, out, words)
        with observe_progress(quiet=quiet) as watcher:
            return gate.run(watcher)


def _rules(settings: Sequence[str]) -> tuple[GateRules, list[int]]:
    """Rules, and the values of ``_MEASURED``, that *settings* (``KEY=VALUE``) give."""
    raw: dict[str, object] = {}
    measured = dict(_MEASURED)
    for setting in settings:
        key, _, text = setting.partition("=")
        section, _, name = key.partition(".")
        value = parse_value(text, "--set", (section, name))
        if section == "measure" and name in measured and isinstance(value, int) and value >= 0:
            measured[name] = value
        elif section == "gate" and name:
            raw[name] = value
        else:
            allowed = ", ".join(f"measure.{each}" for each in _MEASURED)
            raise UsageError(f"--set {setting}: a script has no suite; allowed: gate.KEY, {allowed}")
    rules, problems = parse_gate(raw)
    if rules is None or problems:
        mistakes = "; ".join(f"{'.'.join(map(str, problem.path))}: {problem.message}" for problem in problems)
        raise UsageError(f"--set: {mistakes}")
    return rules, [measured[name] for name in _MEASURED]
