"""A plug-in named in a suite: ``zero``, or ``zero: {stage: 2}``."""

import functools
import itertools
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distbench.core import registry
from distbench.core.case import Choice
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.suite import mesh_option
from distbench.suite.sections import check, has_defaults, is_axis, is_axis_inside, to_plain


@dataclass(frozen=True, eq=False)
class Plugin:
    """A plug-in with checked options; the same object for the same choice."""

    choice: Choice
    """Every option, including defaults, except newer options at their defaults (``case.deciding``)."""
    instance: Any

    def replaced(self, instance: Any) -> "Plugin":
        """The same plug-in with the options of *instance*."""
        return Plugin(Choice(self.choice.name, to_plain(instance)), instance)


def named(raw: Any, path: KeyPath) -> Choice | SuiteMistake:
    """The plug-in that *raw* names, with unchecked options, or the mistake in its form."""
    if isinstance(raw, str):
        return Choice(raw)
    if isinstance(raw, dict) and len(raw) == 1:
        (name, options), *_ = raw.items()
        if options is None or isinstance(options, dict):
            return Choice(name, options or {})
    return SuiteMistake(path, "expected a name, or a name with options: {name: {option: value}}", raw)


Option = tuple[str, ...]
"""Name of an option, and of a key inside it where it is a mapping."""


def spread(plugin: Choice, kind: str) -> Iterator[tuple[Choice, dict[Option, int]]]:
    """Yield one plug-in per combination of the options that list several values.

    Each comes with the index of the chosen value, by option.
    """
    lists = axes_of(plugin, kind)
    for indices in itertools.product(*(range(len(value_of(plugin, option))) for option in lists)):
        by_option = dict(zip(lists, indices, strict=True))
        options: dict[str, Any] = plugin.options
        for option, index in by_option.items():
            options = assigned(options, option, value_of(plugin, option)[index])
        yield Choice(plugin.name, options), by_option


def value_of(plugin: Choice, option: Option) -> Any:
    """Value of *option* of *plugin*."""
    return functools.reduce(operator.getitem, option, plugin.options)


def assigned(options: dict[str, Any], option: Option, value: Any) -> dict[str, Any]:
    """*options* with *value* for *option*."""
    key, *inside = option
    return {**options, key: {**options[key], inside[0]: value} if inside else value}


def axes_of(plugin: Choice, kind: str) -> list[Option]:
    """Options of *plugin* that list several values: ``(stage,)``, or ``(mesh, tp)`` of a key of a mapping."""
    if plugin.name not in registry.names(kind):
        return []
    try:
        cls = registry.load(kind, plugin.name)
    except UsageError:
        # a broken plug-in file: reported where its options are checked
        return []
    return [
        *((key,) for key, value in plugin.options.items() if is_axis(cls, key, value)),
        *(
            (key, inner)
            for key, values in plugin.options.items()
            if isinstance(values, dict)
            for inner, value in values.items()
            if is_axis_inside(cls, key, value)
        ),
    ]


def with_defaults(plugin: Choice, kind: str) -> Choice:
    """*plugin* with defaults for all missing options, unless one of its options has none."""
    cls = registry.load(kind, plugin.name)
    if not has_defaults(cls):
        return plugin
    return Choice(plugin.name, {**to_plain(cls()), **plugin.options})


class Plugins:
    """Checks plug-ins, each distinct choice once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Plugin | None, list[SuiteMistake]]] = {}

    def check(self, kind: str, plugin: Choice, path: KeyPath) -> tuple[Plugin | None, list[SuiteMistake]]:
        """The checked plug-in, or None and all its mistakes.

        *path* is the place of its name, which matters only for mistakes.
        """
        key = json.dumps([kind, plugin.name, plugin.options, path])
        if key not in self._known:
            self._known[key] = _checked(kind, plugin, path)
        return self._known[key]


def _checked(kind: str, plugin: Choice, path: KeyPath) -> tuple[Plugin | None, list[SuiteMistake]]:
    names = registry.names(kind)
    if plugin.name not in names:
        return None, [SuiteMistake(path, f"unknown; {did_you_mean(plugin.name, names)}", plugin.name)]
    try:
        cls = registry.load(kind, plugin.name)
        options = mesh_option.without_ones(cls, plugin.options) if kind == "strategies" else plugin.options
        instance, findings = check(cls, options, (*path, plugin.name))
    except UsageError as error:
        return None, [SuiteMistake(path, str(error), plugin.name)]
    if instance is None:
        return None, [mesh_option.with_owners(each, cls) for each in findings]
    return Plugin(Choice(plugin.name, to_plain(instance)), instance), []
