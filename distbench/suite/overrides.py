"""Overrides of a suite on the command line: ``--set``, ``--only``, ``--world-sizes`` and so on."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.core import registry
from distbench.core.errors import SuiteError, SuiteMistake, did_you_mean
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.plugin_options import parse_choice
from distbench.suite.work import PLUGIN_KEYS, WORK_KEYS, expand_shorthand
from distbench.suite.yaml_reader import SourceMap, key_text, parse_value


@dataclass(frozen=True)
class Overrides:
    """Changes to a suite; messages name each by its option."""

    set: Sequence[str] = ()
    """``key=value``, the value in YAML."""
    only: Sequence[str] = ()
    """Globs on the label or name of cases to run."""
    world_sizes: Sequence[int] | None = None
    device: str | None = None
    jobs: Sequence[str] = ()
    """Sections to turn on: ``check``."""
    launcher: str = ""
    """Launcher that ``auto`` stands for; empty: the one whose allocation contains this process."""
    option_of: Mapping[str, str] = field(default_factory=dict)
    """Setting in ``set`` -> its option, if that is not ``--set``."""


def apply_overrides(tree: dict[str, Any], places: SourceMap, overrides: Overrides) -> list[SuiteMistake]:
    """Apply *overrides* to *tree* and *places* in place; return the mistakes in the options."""
    # options of the requested launcher may follow
    mistakes = _choose_launcher(tree, places, overrides.launcher) if overrides.launcher else []
    for setting in overrides.set:
        try:
            _apply_setting(tree, places, setting, overrides.option_of.get(setting, f"--set {setting}"))
        except SuiteError as error:
            mistakes += error.mistakes
    if overrides.only:
        globs = list(overrides.only)
        _replace_key(tree, places, "only", globs, " ".join(f"--only {shlex.quote(glob)}" for glob in globs))
    if overrides.world_sizes is not None:
        sizes = list(overrides.world_sizes)
        _replace_key(tree, places, "world_sizes", sizes, f"--world-sizes {','.join(map(str, sizes))}")
    for section in overrides.jobs:
        if not tree.get(section):
            _replace_key(tree, places, section, True, f"--{section}")
    if overrides.device is not None:
        _replace_key(tree, places, "device", overrides.device, f"--device {overrides.device}")
    return mistakes


def _choose_launcher(tree: dict[str, Any], places: SourceMap, launcher: str) -> list[SuiteMistake]:
    """Resolve launcher ``auto`` to *launcher*; report a suite that names another one."""
    requested = tree.get("launcher") or "auto"
    choice = parse_choice(requested, ("launcher",))
    if isinstance(choice, Problem) or choice.name == launcher:
        # a mistake in its form is found with all others
        return []
    if choice.name != "auto":
        why = f"does not match --on {launcher}; use --on {choice.name}, or launcher: auto"
        return [places.mistake(("launcher",), why, choice.name)]
    _replace_key(tree, places, "launcher", launcher, f"--on {launcher}")
    return []


def _replace_key(tree: dict[str, Any], places: SourceMap, key: str, value: object, option: str) -> None:
    tree[key] = value
    places.override((key,), option)


def _apply_setting(tree: dict[str, Any], places: SourceMap, setting: str, option: str) -> None:
    key, equals, text = setting.partition("=")
    path = _path(key.strip())
    if not equals or path is None:
        message = "expected key=value, for example measure.steps=10"
        raise SuiteError([SuiteMistake(message, file=option)])
    _expand_shorthand(tree, path, option)
    path = _resolve_metric(tree, path, option)
    parent = _parent_of(tree, path, option)
    last = path[-1]
    if isinstance(parent, list) and not (isinstance(last, int) and last < len(parent)):
        raise _error(option, path, "index out of range")
    parent[last] = parse_value(text, option, path)
    places.override(path, option)
    _remove_axes(tree, places, path, option)


def _path(key: str) -> KeyPath | None:
    if not re.fullmatch(r"[^.\[\]\s]+(\.[^.\[\]]+|\[\d+\])*", key):
        return None
    if key.startswith("axes."):
        return "axes", key.removeprefix("axes.")
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in parts)


def _expand_shorthand(tree: dict[str, Any], path: KeyPath, option: str) -> None:
    """Expand a shorthand on the way of *path* to a mapping: ``transformer`` to ``{transformer: {}}``."""
    root = path[0]
    if root == "strategies" and len(path) > 2:
        _expand_strategy(tree, path, option)
    if len(path) < 2 or root not in (*WORK_KEYS, "launcher") or tree.get(str(root)) is None:
        return
    tree[str(root)] = raw = expand_shorthand(str(root), tree[str(root)])
    if root in (*PLUGIN_KEYS, "launcher") and isinstance(raw, dict) and path[1] not in raw:
        raise _error(option, path, f"not the suite's {root}; {did_you_mean(path[1], raw)}")


def _resolve_metric(tree: dict[str, Any], path: KeyPath, option: str) -> KeyPath:
    """Replace the name of a metric in *path* by its index: ``metrics.telemetry.effect``."""
    if path[0] != "metrics" or len(path) < 2 or isinstance(path[1], int):
        return path
    if tree.get("metrics") is None:
        # all metrics, as without the key
        tree["metrics"] = list(registry.plugin_names("metrics"))
    listed: list[Any] = tree["metrics"] if isinstance(tree["metrics"], list) else []
    plugins = [parse_choice(raw, ("metrics", i)) for i, raw in enumerate(listed)]
    names = [plugin.name for plugin in plugins if not isinstance(plugin, Problem)]
    for i, plugin in enumerate(plugins):
        if not isinstance(plugin, Problem) and plugin.name == path[1]:
            listed[i] = plugin.to_yaml()
            return ("metrics", i, *path[1:])
    raise _error(option, path, f"not a metric of the suite; {did_you_mean(path[1], names)}")


def _expand_strategy(tree: dict[str, Any], path: KeyPath, option: str) -> None:
    """Expand a strategy on the way of *path* to a mapping: ``ddp`` to ``{ddp: {}}``."""
    listed, place = tree.get("strategies"), path[1]
    if not isinstance(listed, list) or not isinstance(place, int) or place >= len(listed):
        return
    plugin = parse_choice(listed[place], path[:2])
    if not isinstance(plugin, Problem):
        listed[place] = plugin.to_yaml()
        if path[2] != plugin.name:
            raise _error(option, path, f"strategies[{place}] is {plugin.name}")


def _parent_of(tree: dict[str, Any], path: KeyPath, option: str) -> Any:
    node: Any = tree
    for depth, part in enumerate(path[:-1], start=1):
        if isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        elif isinstance(node, dict) and isinstance(part, str):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        else:
            node = None
        wanted = list if isinstance(path[depth], int) else dict
        if not isinstance(node, wanted):
            raise _error(option, path, f"{key_text(path[:depth])} has no sub-keys; set the whole value")
    return node


def _remove_axes(tree: dict[str, Any], places: SourceMap, path: KeyPath, option: str) -> None:
    # a field set on the command line is no longer an axis
    axes = tree.get("axes")
    key = key_text(path)
    if not isinstance(axes, dict) or path[0] == "axes":
        return
    for name in list(axes):
        if f"{name}.".startswith(f"{key}."):
            del axes[name]
            places.forget(("axes", name))
        elif key.startswith(f"{name}."):
            raise _error(option, path, f"axes.{name} replaces all of {name}; set axes.{name} instead")


def _error(option: str, path: KeyPath, message: str) -> SuiteError:
    return SuiteError([SuiteMistake(message, key_text(path), file=option)])
