"""The work of a case: everything that defines it besides strategy and world size."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from distbench import optimizers
from distbench.core import lr_schedule
from distbench.core.bounds import Bound, Name
from distbench.core.case import (
    CURRENT_ENVIRONMENT,
    NATIVE_ENGINE,
    LoaderConfig,
    OptimizerConfig,
    PrecisionConfig,
    fields_added_later,
)
from distbench.core.suite_mistakes import Problem
from distbench.suite.batch import BatchConfig
from distbench.suite.plugin_options import (
    CheckedPlugin,
    PluginChecker,
    fill_defaults,
    name_option,
    parse_choice,
)
from distbench.suite.sections import check_section, section_defaults
from distbench.suite.variables import ENV_KEY, check_variables, variable_texts

RawMapping = dict[str, Any]

PLUGIN_KEYS = {"workload": "workloads", "data": "data", "engine": "engines"}
SECTION_KEYS: dict[str, type] = {
    "batch": BatchConfig,
    "optimizer": OptimizerConfig,
    "precision": PrecisionConfig,
    "loader": LoaderConfig,
}


@dataclass(frozen=True)
class ScalarSettings:
    """The keys of the work with a single value."""

    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """full: recompute each layer in the backward pass instead of keeping its activations; selective: keep
    the outputs of its matrix products and of attention, and recompute the rest, which is cheap."""
    compile: bool | Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = False
    """Compile each layer with torch.compile: true, or one of its modes. The compile time is not part of the
    timed window."""
    threads: Annotated[int, Bound(1, 4096)] | Literal["auto"] = "auto"
    """Intra-op threads per rank; auto: the cores divided by the largest world size."""
    seed: Annotated[int, Bound(0)] = 1234
    """Seed of the weights and of the data."""
    initial_weights: Literal["drawn", "exact"] = "drawn"
    """drawn: by each rank in place, from the distributions that the model's constructor draws from, whatever
    the size. exact: the constructor's own numbers, created in one process and stored in a file."""
    environment: Name = CURRENT_ENVIRONMENT
    """Python environment in which the processes of a case run: current, that of distbench itself, or a name
    of environments."""


_DTYPE_FIELDS = ("compute", "reduce", "master", "optimizer_state")
_FLOAT8_ADVICE = (
    "with float8, linear layers multiply in float8 and everything else computes in bf16; set "
    "precision: float8, or precision: {compute: bf16, float8: tensorwise} or another recipe"
)

_CHECKED_FIRST = ("workload", "batch", "optimizer", "precision", "loader")
"""Roots that are checked before the data, whose default is that of the workload."""

SCALAR_KEYS = tuple(field.name for field in dataclasses.fields(ScalarSettings))
WORK_KEYS = (*PLUGIN_KEYS, *SECTION_KEYS, ENV_KEY, *SCALAR_KEYS)


@dataclass(frozen=True)
class CheckedWork:
    """Checked work."""

    workload: CheckedPlugin
    data: CheckedPlugin
    batch: BatchConfig
    optimizer: OptimizerConfig
    precision: PrecisionConfig
    loader: LoaderConfig
    env: dict[str, str]
    engine: CheckedPlugin
    scalars: ScalarSettings


def expand_shorthand(root: str, raw: Any) -> Any:
    """Value of *root* with its shorthand expanded: ``bf16`` to ``{compute: bf16}``."""
    if root in (*PLUGIN_KEYS, "launcher"):
        plugin = parse_choice(name_option(PLUGIN_KEYS.get(root, "launchers"), raw), (root,))
        return raw if isinstance(plugin, Problem) else plugin.to_yaml()
    if root == "precision" and isinstance(raw, str):
        return _expand_precision(raw)
    if root == "optimizer" and isinstance(raw, str):
        return {"name": raw}
    return variable_texts(raw) if root == ENV_KEY else raw


def _expand_precision(word: str) -> RawMapping:
    if word == "float8":
        return {"compute": "bf16", "float8": "tensorwise"}
    # fp64 compute makes sense only with fp64 states; with 16 bits, states default to fp32
    return dict.fromkeys(_DTYPE_FIELDS, word) if word == "fp64" else {"compute": word}


def set_path(work: Mapping[str, Any], path: tuple[str, ...], value: Any) -> RawMapping:
    """Copy of *work* with the value at *path* replaced."""
    root, *rest = path
    if not rest:
        return {**work, root: expand_shorthand(root, value)}
    return {**work, root: _set_inside(expand_shorthand(root, work.get(root)), rest, value)}


def _set_inside(raw: Any, path: list[str], value: Any) -> RawMapping:
    key, *rest = path
    here = dict(raw) if isinstance(raw, dict) else {}
    here[key] = _set_inside(here.get(key), rest, value) if rest else value
    return here


class WorkChecker:
    """Checks work section by section, each distinct section once."""

    def __init__(self, plugins: PluginChecker) -> None:
        self._plugins = plugins
        self._known: dict[tuple[str, str], tuple[Any, list[Problem]]] = {}

    def check(self, work: Mapping[str, Any]) -> tuple[CheckedWork | None, list[Problem]]:
        """Return the checked *work* (in normal form), or None and all its mistakes.

        A missing root also gives None, but no finding, because it has been reported before.
        """
        sections: dict[str, Any] = {}
        findings: list[Problem] = []
        given = {**work, "scalars": {root: work[root] for root in SCALAR_KEYS if root in work}}
        if given.get("data") is None:
            given.pop("data", None)
        given.setdefault("loader", {})
        given.setdefault(ENV_KEY, {})
        given.setdefault("engine", NATIVE_ENGINE.to_yaml())
        for root in (*_CHECKED_FIRST, "data", ENV_KEY, "engine", "scalars"):
            if root == "data" and sections["workload"]:
                workload = sections["workload"]
                given.setdefault("data", {workload.instance.default_data_for(workload.choice.options): {}})
            sections[root], wrong = self._section(root, given[root]) if root in given else (None, [])
            findings += wrong
        return (None if None in sections.values() else CheckedWork(**sections)), findings

    def _section(self, root: str, raw: Any) -> tuple[Any, list[Problem]]:
        """Checked value of one root of the work or of its scalars; None and its mistakes if it has any."""
        key = root, json.dumps(raw)
        if key not in self._known:
            self._known[key] = self._check_section(root, raw)
        return self._known[key]

    def _check_section(self, root: str, raw: Any) -> tuple[Any, list[Problem]]:
        if root == "scalars":
            return check_section(ScalarSettings, raw, ())
        if root == ENV_KEY:
            return check_variables(raw, (root,))
        if root in PLUGIN_KEYS:
            plugin = parse_choice(raw, (root,))
            if isinstance(plugin, Problem):
                return None, [plugin]
            return self._plugins.check(PLUGIN_KEYS[root], plugin, (root,))
        if not isinstance(raw, dict):
            return None, [Problem((root,), "expected a mapping", raw)]
        if root == "precision" and raw.get("compute") in ("float8", "fp8"):
            return None, [Problem((root, "compute"), _FLOAT8_ADVICE, raw["compute"])]
        raw = fill_derived(root, raw)
        value, findings = check_section(SECTION_KEYS[root], raw, (root,))
        findings = findings or _cross_checks(value)
        return (None if findings else value), findings


def fill_derived(root: str, section: RawMapping) -> RawMapping:
    """Add defaults to *section* that follow from its other fields: loss scale of fp16, optimizer kernel."""
    if root == "optimizer":
        return {**optimizers.default_settings(section.get("name")), **section}
    if root == "precision" and section.get("compute") == "fp16":
        return {"loss_scale": 1024.0, **section}
    return section


# if missing, these follow from other fields of a case, so there is no default to fill in
_DERIVED = {"loss_scale", "kernel", "momentum", *(field.name for field in dataclasses.fields(BatchConfig))}


def fill_work_defaults(work: Mapping[str, Any]) -> RawMapping:
    """Add all defaults to *work* that don't depend on other fields."""
    full = {root: raw for root, raw in work.items() if root in SCALAR_KEYS or (root == ENV_KEY and raw)}
    for root, kind in PLUGIN_KEYS.items():
        plugin = parse_choice(work.get(root), (root,))
        if not isinstance(plugin, Problem):
            full[root] = fill_defaults(plugin, kind).to_yaml()
    for root, cls in SECTION_KEYS.items():
        if root in work:
            filled = {
                k: v
                for k, v in section_defaults(cls).items()
                if k not in _DERIVED and k not in fields_added_later(cls)
            }
            full[root] = {**filled, **work[root]}
    return full


def _cross_checks(value: Any) -> list[Problem]:
    if isinstance(value, BatchConfig):
        return value.problems()
    if isinstance(value, PrecisionConfig):
        return _precision_problems(value)
    if isinstance(value, LoaderConfig):
        return _loader_problems(value)
    return _optimizer_problems(value) if isinstance(value, OptimizerConfig) else []


def _precision_problems(value: PrecisionConfig) -> list[Problem]:
    parts = {part: getattr(value, part) for part in _DTYPE_FIELDS}
    if "fp64" in parts.values() and set(parts.values()) != {"fp64"}:
        message = "fp64 can't be mixed with other dtypes; precision: fp64 sets all of them"
        return [Problem(("precision",), message, parts)]
    if value.compute != "fp16" and value.loss_scale is not None:
        message = f"only fp16 has a loss scale, but precision.compute is {value.compute}"
        return [Problem(("precision", "loss_scale"), message, value.loss_scale, ("compute", "loss_scale"))]
    usual = PrecisionConfig()
    for name in ("initial_scale_power", "loss_scale_window"):
        if getattr(value, name) != getattr(usual, name) and not value.is_scaled_dynamically:
            message = f"only a dynamic loss scale has {name}; set loss_scale: dynamic"
            return [Problem(("precision", name), message, getattr(value, name), (name, "loss_scale"))]
    if value.float8 != "none" and value.compute != "bf16":
        message = f"float8 needs compute: bf16 for everything outside float8, not {value.compute}"
        return [Problem(("precision", "float8"), message, value.float8, ("compute", "float8"))]
    if value.float8_emulated and value.float8 == "none":
        message = "no float8 to emulate; set a recipe in precision.float8, such as tensorwise"
        return [Problem(("precision", "float8_emulated"), message, value.float8_emulated)]
    return []


def _loader_problems(value: LoaderConfig) -> list[Problem]:
    usual = LoaderConfig()
    changed = [key for key in vars(usual) if getattr(value, key) != getattr(usual, key)]
    if value.workers is None:
        message = "there is no loader without loader.workers; set it to 0 or more"
        return [Problem(("loader", key), message, getattr(value, key), (key, "workers")) for key in changed]
    return [
        Problem(
            ("loader", key),
            "only workers read it, but loader.workers = 0; set workers to 1 or more, or remove it",
            getattr(value, key),
            (key, "workers"),
        )
        for key in ("prefetch_factor", "persistent_workers")
        if key in changed and not value.workers
    ]


def _optimizer_problems(value: OptimizerConfig) -> list[Problem]:
    return [
        Problem(("optimizer", key), message, getattr(value, key), (key, together))
        for together, problems in (
            ("name", optimizers.setting_mistakes(value)),
            ("schedule", lr_schedule.schedule_problems(value)),
        )
        for key, message in problems
    ]
