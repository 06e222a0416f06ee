"""A plug-in named in a suite: ``zero``, or ``zero: {stage: 2}``."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.meshes import MESH_DIMENSIONS
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.sections import (
    all_have_defaults,
    check_section,
    field_names,
    lists_values,
    lists_values_inside,
    mapping_keys,
    section_defaults,
    to_json_dict,
)

OptionPath = tuple[str, ...]
"""Name of an option, and of a key inside it where it is a mapping."""
MESH_OPTION = "mesh"


@dataclass(frozen=True, eq=False)
class CheckedPlugin:
    """A plug-in with checked options; the same object for the same choice."""

    choice: PluginChoice
    """Every option, including defaults, except newer options at their defaults (``case.identity_fields``)."""
    instance: Any

    def with_instance(self, instance: Any) -> CheckedPlugin:
        """The same plug-in with the options of *instance*."""
        return CheckedPlugin(PluginChoice(self.choice.name, to_json_dict(instance)), instance)


def parse_choice(raw: Any, path: KeyPath) -> PluginChoice | Problem:
    """Parse the plug-in that *raw* names, with unchecked options; return the mistake in its form, if any."""
    if isinstance(raw, str):
        return PluginChoice(raw)
    if isinstance(raw, dict) and len(raw) == 1:
        (name, options), *_ = raw.items()
        if options is None or isinstance(options, dict):
            return PluginChoice(name, options or {})
    return Problem(path, "expected a name, or a name with options: {name: {option: value}}", raw)


def required_option(kind: str, name: str) -> str | None:
    """The only option of a plug-in that has no default; None: it has none, or several."""
    if name not in registry.plugin_names(kind):
        return None
    try:
        cls = registry.load_plugin(kind, name)
        required = [field for field in field_names(cls) if field not in section_defaults(cls)]
    except UsageError:
        # a broken plug-in file: reported where its options are checked
        return None
    return required[0] if len(required) == 1 else None


def name_option(kind: str, raw: Any) -> Any:
    """``{user: module:callable}`` with the name of the option that the text is for; else *raw* itself."""
    if not isinstance(raw, dict) or len(raw) != 1:
        return raw
    ((name, value),) = raw.items()
    option = required_option(kind, name) if isinstance(value, str) else None
    return {name: {option: value}} if option else raw


def expand_options(plugin: PluginChoice, kind: str) -> Iterator[tuple[PluginChoice, dict[OptionPath, int]]]:
    """Yield one plug-in per combination of the options that list several values.

    Each comes with the index of the chosen value, by option.
    """
    lists = listed_options(plugin, kind)
    for indices in itertools.product(*(range(len(get_option(plugin, option))) for option in lists)):
        by_option = dict(zip(lists, indices, strict=True))
        options: dict[str, Any] = plugin.options
        for option, index in by_option.items():
            options = set_option(options, option, get_option(plugin, option)[index])
        yield PluginChoice(plugin.name, options), by_option


def get_option(plugin: PluginChoice, option: OptionPath) -> Any:
    """Value of *option* of *plugin*."""
    return functools.reduce(operator.getitem, option, plugin.options)


def set_option(options: dict[str, Any], option: OptionPath, value: Any) -> dict[str, Any]:
    """Return *options* with *value* for *option*."""
    key, *inside = option
    return {**options, key: {**options[key], inside[0]: value} if inside else value}


def listed_options(plugin: PluginChoice, kind: str) -> list[OptionPath]:
    """Options of *plugin* that list several values: ``(stage,)``, or ``(mesh, tp)`` of a mapping."""
    if plugin.name not in registry.plugin_names(kind):
        return []
    try:
        cls = registry.load_plugin(kind, plugin.name)
    except UsageError:
        # a broken plug-in file: reported where its options are checked
        return []
    return [
        *((key,) for key, value in plugin.options.items() if lists_values(cls, key, value)),
        *(
            (key, inner)
            for key, values in plugin.options.items()
            if isinstance(values, dict)
            for inner, value in values.items()
            if lists_values_inside(cls, key, value)
        ),
    ]


def fill_defaults(plugin: PluginChoice, kind: str) -> PluginChoice:
    """Return *plugin* with defaults for all missing options, unless one of its options has none."""
    cls = registry.load_plugin(kind, plugin.name)
    if not all_have_defaults(cls):
        return plugin
    return PluginChoice(plugin.name, {**to_json_dict(cls()), **plugin.options})


class PluginChecker:
    """Checks plug-ins, each distinct choice once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[CheckedPlugin | None, list[Problem]]] = {}

    def check(
        self, kind: str, plugin: PluginChoice, path: KeyPath
    ) -> tuple[CheckedPlugin | None, list[Problem]]:
        """Return the checked plug-in, or None and all its mistakes.

        *path* is the place of its name, which matters only for mistakes.
        """
        key = json.dumps([kind, plugin.name, plugin.options, path])
        if key not in self._known:
            self._known[key] = _check(kind, plugin, path)
        return self._known[key]


def _check(kind: str, plugin: PluginChoice, path: KeyPath) -> tuple[CheckedPlugin | None, list[Problem]]:
    names = registry.plugin_names(kind)
    if plugin.name not in names:
        return None, [Problem(path, f"unknown; {did_you_mean(plugin.name, names)}", plugin.name)]
    try:
        cls = registry.load_plugin(kind, plugin.name)
        options = drop_size_one(cls, plugin.options) if kind == "strategies" else plugin.options
        instance, findings = check_section(cls, options, (*path, plugin.name))
    except UsageError as error:
        return None, [Problem(path, str(error), plugin.name)]
    if instance is None:
        return None, [name_supporting_strategies(each, cls) for each in findings]
    return CheckedPlugin(PluginChoice(plugin.name, to_json_dict(instance)), instance), []


def drop_size_one(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop dimensions of size 1 from *options* that the strategy *cls* does not have."""
    mesh = options.get(MESH_OPTION)
    if not isinstance(mesh, dict):
        return dict(options)
    foreign = foreign_dimensions(mapping_keys(cls, MESH_OPTION))
    kept = {name: size for name, size in mesh.items() if not (name in foreign and _is_one(size))}
    return {**options, MESH_OPTION: kept}


def foreign_dimensions(names: Sequence[str]) -> list[str]:
    """Known dimensions besides *names*; empty: a strategy whose mesh may have any name."""
    return [name for name in MESH_DIMENSIONS if name not in names] if names else []


def name_supporting_strategies(problem: Problem, cls: type) -> Problem:
    """Extend *problem* in the options of *cls* with suggestions.

    If *cls* lacks a dimension of the mesh, the strategies that have it are named.
    """
    *_, option, name = ("", *problem.path)
    if option != MESH_OPTION or name not in foreign_dimensions(mapping_keys(cls, MESH_OPTION)):
        return problem
    strategies = registry.built_in_plugins("strategies")
    owners = sorted(each for each, cls in strategies.items() if name in mapping_keys(cls, MESH_OPTION))
    return replace(problem, message=f"{problem.message}; strategies that have {name}: {', '.join(owners)}")


def _is_one(size: object) -> bool:
    return size == 1 and not isinstance(size, bool)
