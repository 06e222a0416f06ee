"""The work of a case: everything that defines it besides strategy and world size."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from distbench import optimizers
from distbench.core import lr_schedule
from distbench.core.bounds import Bound, Name
from distbench.core.case import CURRENT, Optimizer, Precision, newer
from distbench.core.suite_mistakes import SuiteMistake
from distbench.suite.batch import BatchSpec
from distbench.suite.plugin_options import Plugin, Plugins, named, with_defaults
from distbench.suite.sections import check, defaults

Raw = dict[str, Any]

PLUGIN_ROOTS = {"workload": "workloads", "data": "data"}
SECTION_ROOTS: dict[str, type] = {"batch": BatchSpec, "optimizer": Optimizer, "precision": Precision}


@dataclass(frozen=True)
class Scalars:
    """The keys of the work with a single value."""

    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """full: recompute each layer in the backward pass instead of keeping its activations; selective: keep
    the outputs of its matrix products and of attention, and recompute the rest, which is cheap."""
    compile: bool | Literal["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = False
    """Make code of each layer with torch.compile: true, or one of its modes. What it takes is no part of the
    timed window."""
    threads: Annotated[int, Bound(1, 4096)] | Literal["auto"] = "auto"
    """Intra-op threads per rank; auto: the cores divided by the largest world size."""
    seed: Annotated[int, Bound(0)] = 1234
    """Seed of the weights and of the data."""
    initial_weights: Literal["drawn", "exact"] = "drawn"
    """drawn: by each rank in place, from the distributions that the model's constructor draws from, whatever
    the size. exact: just the constructor's own numbers, whole in one process and in a file."""
    environment: Name = CURRENT
    """Python environment in which the processes of a case run: current, that of distbench itself, or a name
    of environments."""


_PARTS = ("compute", "reduce", "master", "optimizer_state")
_FLOAT8 = (
    "linear layers multiply in float8 and all else computes in bf16; write precision: float8, or precision: "
    "{compute: bf16, float8: tensorwise} or another recipe"
)

SCALAR_ROOTS = tuple(field.name for field in dataclasses.fields(Scalars))
ROOTS = (*PLUGIN_ROOTS, *SECTION_ROOTS, *SCALAR_ROOTS)


@dataclass(frozen=True)
class Work:
    """Checked work."""

    workload: Plugin
    data: Plugin
    batch: BatchSpec
    optimizer: Optimizer
    precision: Precision
    scalars: Scalars


def normal(root: str, raw: Any) -> Any:
    """Value of *root* with its shorthand expanded: ``bf16`` to ``{compute: bf16}``."""
    if root in (*PLUGIN_ROOTS, "launcher"):
        plugin = named(raw, (root,))
        return raw if isinstance(plugin, SuiteMistake) else plugin.to_raw()
    if root == "precision" and isinstance(raw, str):
        return _of_precision(raw)
    if root == "optimizer" and isinstance(raw, str):
        return {"name": raw}
    return raw


def _of_precision(word: str) -> Raw:
    if word == "float8":
        return {"compute": "bf16", "float8": "tensorwise"}
    # fp64 compute makes sense only with fp64 states; with 16 bits, states default to fp32
    return dict.fromkeys(_PARTS, word) if word == "fp64" else {"compute": word}


def assign(work: Mapping[str, Any], path: tuple[str, ...], value: Any) -> Raw:
    """Copy of *work* with the value at *path* replaced."""
    root, *rest = path
    if not rest:
        return {**work, root: normal(root, value)}
    return {**work, root: _inside(normal(root, work.get(root)), rest, value)}


def _inside(raw: Any, path: list[str], value: Any) -> Raw:
    key, *rest = path
    here = dict(raw) if isinstance(raw, dict) else {}
    here[key] = _inside(here.get(key), rest, value) if rest else value
    return here


class WorkChecker:
    """Checks work section by section, each distinct section once."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._known: dict[tuple[str, str], tuple[Any, list[SuiteMistake]]] = {}

    def check(self, work: Mapping[str, Any]) -> tuple[Work | None, list[SuiteMistake]]:
        """The checked *work* (in normal form), or None and all its mistakes.

        A missing root also gives None, but no finding, because it has been reported before.
        """
        sections: dict[str, Any] = {}
        findings: list[SuiteMistake] = []
        given = {**work, "scalars": {root: work[root] for root in SCALAR_ROOTS if root in work}}
        if given.get("data") is None:
            given.pop("data", None)
        for root in ("workload", "batch", "optimizer", "precision", "data", "scalars"):
            if root == "data" and sections["workload"]:
                workload = sections["workload"]
                given.setdefault("data", {workload.instance.usual_data(workload.choice.options): {}})
            sections[root], wrong = self._section(root, given[root]) if root in given else (None, [])
            findings += wrong
        return (None if None in sections.values() else Work(**sections)), findings

    def _section(self, root: str, raw: Any) -> tuple[Any, list[SuiteMistake]]:
        """Checked value of one root of the work or of its scalars, or None and its mistakes."""
        key = root, json.dumps(raw)
        if key not in self._known:
            self._known[key] = self._checked(root, raw)
        return self._known[key]

    def _checked(self, root: str, raw: Any) -> tuple[Any, list[SuiteMistake]]:
        if root == "scalars":
            return check(Scalars, raw, ())
        if root in PLUGIN_ROOTS:
            plugin = named(raw, (root,))
            if isinstance(plugin, SuiteMistake):
                return None, [plugin]
            return self._plugins.check(PLUGIN_ROOTS[root], plugin, (root,))
        if not isinstance(raw, dict):
            return None, [SuiteMistake((root,), "expected a mapping", raw)]
        if root == "precision" and raw.get("compute") in ("float8", "fp8"):
            return None, [SuiteMistake((root, "compute"), _FLOAT8, raw["compute"])]
        raw = with_derived(root, raw)
        value, findings = check(SECTION_ROOTS[root], raw, (root,))
        findings = findings or _crosswise(value)
        return (None if findings else value), findings


def with_derived(root: str, section: Raw) -> Raw:
    """*section* with defaults that follow from its other fields: fp16's loss scale, an optimizer's kernel."""
    if root == "optimizer":
        return {**optimizers.usual(section.get("name")), **section}
    if root == "precision" and section.get("compute") == "fp16":
        return {"loss_scale": 1024.0, **section}
    return section


# if missing, these follow from other fields of a case, so there is no default to fill in
_DERIVED = {"loss_scale", "kernel", "momentum", *(field.name for field in dataclasses.fields(BatchSpec))}


def with_default_work(work: Mapping[str, Any]) -> Raw:
    """*work* with all defaults that don't depend on other fields."""
    full = {root: raw for root, raw in work.items() if root in SCALAR_ROOTS}
    for root, kind in PLUGIN_ROOTS.items():
        plugin = named(work.get(root), (root,))
        if not isinstance(plugin, SuiteMistake):
            full[root] = with_defaults(plugin, kind).to_raw()
    for root, cls in SECTION_ROOTS.items():
        if root in work:
            filled = {k: v for k, v in defaults(cls).items() if k not in _DERIVED and k not in newer(cls)}
            full[root] = {**filled, **work[root]}
    return full


def _crosswise(value: Any) -> list[SuiteMistake]:
    if isinstance(value, BatchSpec):
        return value.problems()
    if isinstance(value, Precision):
        return _of_parts(value)
    return _of_optimizer(value) if isinstance(value, Optimizer) else []


def _of_parts(value: Precision) -> list[SuiteMistake]:
    parts = {part: getattr(value, part) for part in _PARTS}
    if "fp64" in parts.values() and set(parts.values()) != {"fp64"}:
        message = "fp64 can't be mixed with other dtypes; precision: fp64 sets all of them"
        return [SuiteMistake(("precision",), message, parts)]
    if value.compute != "fp16" and value.loss_scale is not None:
        message = f"only fp16 has a loss scale, but precision.compute is {value.compute}"
        return [
            SuiteMistake(("precision", "loss_scale"), message, value.loss_scale, ("compute", "loss_scale"))
        ]
    usual = Precision()
    for name in ("initial_scale_power", "loss_scale_window"):
        if getattr(value, name) != getattr(usual, name) and not value.is_scaled_dynamically:
            message = f"only a dynamic loss scale has {name}; set loss_scale: dynamic"
            return [SuiteMistake(("precision", name), message, getattr(value, name), (name, "loss_scale"))]
    if value.float8 != "none" and value.compute != "bf16":
        message = f"float8 needs compute: bf16 for all that is not in float8, not {value.compute}"
        return [SuiteMistake(("precision", "float8"), message, value.float8, ("compute", "float8"))]
    if value.float8_emulated and value.float8 == "none":
        message = "there is no float8 to emulate; name a recipe in precision.float8, such as tensorwise"
        return [SuiteMistake(("precision", "float8_emulated"), message, value.float8_emulated)]
    return []


def _of_optimizer(value: Optimizer) -> list[SuiteMistake]:
    return [
        SuiteMistake(("optimizer", key), message, getattr(value, key), (key, together))
        for together, problems in (
            ("name", optimizers.mistakes(value)),
            ("schedule", lr_schedule.problems(value)),
        )
        for key, message in problems
    ]
