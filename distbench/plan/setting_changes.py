"""A suite that measures a case beside copies of it that have one setting changed each."""

from __future__ import annotations

import glob
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from distbench.core.case import (
    CURRENT_ENVIRONMENT,
    NATIVE_ENGINE,
    Case,
    LoaderConfig,
    PluginChoice,
    identity_fields,
)
from distbench.core.errors import SuiteError
from distbench.core.job import MEASURE
from distbench.core.machine import Machine
from distbench.core.text import one_line
from distbench.optimizers import HYPER_PARAMETER_KEYS, optimizers_with_key
from distbench.plan.planner import Plan, make_plan
from distbench.suite import Suite, parse_suite_text
from distbench.suite.cells import LABEL_OPTION
from distbench.suite.cross_checks import ENVIRONMENTS_KEY

_MIN_TRIALS = 3
"""One trial has no spread, and two have a wide interval."""
_KEPT_JOBS = (MEASURE, "check")
_MACHINE_KEYS = ("limits", "launcher", "metrics", ENVIRONMENTS_KEY)


@dataclass(frozen=True)
class SettingChange:
    """A setting of a suite with another value than a case has."""

    key: str
    """Dotted key: ``batch.micro_batch_size``, or ``ddp.bucket_cap_mb`` for an option of a strategy."""
    value: Any

    @property
    def text(self) -> str:
        """``ddp.bucket_cap_mb: 100``, as a suite would have it."""
        return f"{self.key}: {self.value if isinstance(self.value, str) else json.dumps(self.value)}"


@dataclass(frozen=True)
class ChangeTrials:
    """A suite with a case and its changed copies."""

    suite: Suite
    base: str
    """Id of the case that everything is compared with."""
    changes: Mapping[str, SettingChange]
    """Change of each of the other cases, by id."""
    rejected: Mapping[SettingChange, str]
    """Reason why a change can't be tried."""


def suite_of_changes(
    case: Case,
    changes: Sequence[SettingChange],
    suite: Suite,
    description: str,
    machine: Machine | None = None,
) -> ChangeTrials:
    """Suite of *case*, which is one of *suite*, with a case more for each of *changes* that can be planned.

    It has the machine, the limits and the metrics of *suite*, its equivalence check if it has one, and at
    least three trials. *machine*: as of ``make_plan``.
    """
    accepted: list[SettingChange] = []
    rejected: dict[SettingChange, str] = {}
    cases: dict[str, SettingChange] = {}
    for change in changes:
        try:
            changed = _changed_case(case, make_plan(_suite(case, [change], suite, description), machine))
        except SuiteError as error:
            rejected[change] = one_line(error.mistakes[0].message)
            continue
        if isinstance(changed, str):
            rejected[change] = changed
        else:
            accepted.append(change)
            cases[changed.id] = change
    return ChangeTrials(_suite(case, accepted, suite, description), case.id, cases, rejected)


def _changed_case(base: Case, planned: Plan) -> Case | str:
    """The case that is not *base*, or the reason why it can't run."""
    (other,) = (item for item in planned.cases if item.case.id != base.id)
    return other.problem or other.case


def _suite(case: Case, changes: Sequence[SettingChange], suite: Suite, description: str) -> Suite:
    from ruamel.yaml import YAML

    writer, text = YAML(), io.StringIO()
    writer.default_flow_style = None
    writer.width = 110
    writer.dump(_tree(case, changes, suite, description), text)
    return parse_suite_text(text.getvalue(), file="")


def _tree(case: Case, changes: Sequence[SettingChange], suite: Suite, description: str) -> dict[str, Any]:
    resolved = suite.to_resolved()
    jobs = {name: resolved[name] for name in _KEPT_JOBS if resolved.get(name)}
    jobs[MEASURE] = {
        **jobs[MEASURE],
        "trials": max(_MIN_TRIALS, suite.measure.trials),
        "warmup": max([suite.measure.warmup, *_settling_steps(case, changes)]),
    }
    machine = {key: resolved[key] for key in _MACHINE_KEYS if key in resolved}
    own = f"{case.strategy.name}."
    options = [
        {case.strategy.name: {**case.strategy.options, change.key.removeprefix(own): change.value}}
        for change in changes
        if change.key.startswith(own)
    ]
    return {
        "name": f"{suite.name}-changes",
        "description": description,
        **_work(case),
        "strategies": [_base_strategy(case, suite).to_yaml(), *options],
        "world_sizes": [case.world_size],
        "device": case.device,
        "include": [
            {"strategy": glob.escape(case.label), change.key: change.value}
            for change in changes
            if not change.key.startswith(own)
        ],
        **jobs,
        **machine,
    }


def _base_strategy(case: Case, suite: Suite) -> PluginChoice:
    """Strategy of *case* with the label that *suite* gave it."""
    given = {each.given_label for each in suite.strategies}
    label = {LABEL_OPTION: case.label} if case.label in given else {}
    return PluginChoice(case.strategy.name, {**case.strategy.options, **label})


def _settling_steps(case: Case, changes: Sequence[SettingChange]) -> list[int]:
    """Steps of warm-up that loaders with other numbers of workers need."""
    steps = case.batch.gradient_accumulation_steps
    workers = [change.value for change in changes if change.key == "loader.workers"]
    return [replace(case.loader, workers=each).settling_steps(steps) for each in workers]


def _work(case: Case) -> dict[str, Any]:
    """The work of *case* as a suite has it."""
    unread = {key for key in HYPER_PARAMETER_KEYS if case.optimizer.name not in optimizers_with_key(key)}
    optimizer = {key: value for key, value in identity_fields(case.optimizer).items() if key not in unread}
    if "betas" in optimizer:
        optimizer["betas"] = list(case.optimizer.betas)
    return {
        "workload": case.workload.to_yaml(),
        "data": case.data.to_yaml(),
        "batch": {
            "global_batch_size": case.batch.global_batch_size,
            "micro_batch_size": case.batch.micro_batch_size,
        },
        "optimizer": optimizer,
        "precision": identity_fields(case.precision),
        "activation_checkpointing": case.activation_checkpointing,
        "compile": {"none": False, "default": True}.get(case.compile, case.compile),
        "threads": case.threads,
        "seed": case.seed,
        "initial_weights": case.initial_weights,
        **({"loader": asdict(case.loader)} if case.loader != LoaderConfig() else {}),
        **({"env": case.env} if case.env else {}),
        **({"engine": case.engine.to_yaml()} if case.engine != NATIVE_ENGINE else {}),
        **({"environment": case.environment} if case.environment != CURRENT_ENVIRONMENT else {}),
    }
