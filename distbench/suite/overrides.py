"""Overrides of a suite on the command line: ``--set``, ``--only``, ``--world-sizes`` and so on."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distbench.core import registry
from distbench.core.errors import Mistake, SuiteError, did_you_mean
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.suite.plugin_options import named
from distbench.suite.work import PLUGIN_ROOTS, ROOTS, normal
from distbench.suite.yaml_reader import Places, key_text, parse_value


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
    on: str = ""
    """Launcher that ``auto`` stands for; empty: the one that this process is inside of."""
    option_of: Mapping[str, str] = field(default_factory=dict)
    """A setting in ``set`` -> the option that stands for it, if that is not ``--set``."""


def apply(tree: dict[str, Any], places: Places, overrides: Overrides) -> list[Mistake]:
    """Apply *overrides* to *tree* and *places* in place; return the mistakes in the options."""
    # options of the launcher that is asked for may follow
    mistakes = _place_on(tree, places, overrides.on) if overrides.on else []
    for setting in overrides.set:
        try:
            _set(tree, places, setting, overrides.option_of.get(setting, f"--set {setting}"))
        except SuiteError as error:
            mistakes += error.mistakes
    if overrides.only:
        globs = list(overrides.only)
        _replace(tree, places, "only", globs, " ".join(f"--only {shlex.quote(glob)}" for glob in globs))
    if overrides.world_sizes is not None:
        sizes = list(overrides.world_sizes)
        _replace(tree, places, "world_sizes", sizes, f"--world-sizes {','.join(map(str, sizes))}")
    for section in overrides.jobs:
        if not tree.get(section):
            _replace(tree, places, section, True, f"--{section}")
    if overrides.device is not None:
        _replace(tree, places, "device", overrides.device, f"--device {overrides.device}")
    return mistakes


def _place_on(tree: dict[str, Any], places: Places, launcher: str) -> list[Mistake]:
    """Have ``auto`` stand for *launcher*; a suite that names another one is a mistake."""
    said = tree.get("launcher") or "auto"
    choice = named(said, ("launcher",))
    if isinstance(choice, SuiteMistake) or choice.name == launcher:
        # a mistake in its form is found with all others
        return []
    if choice.name != "auto":
        why = f"is not {launcher}, as --on {launcher} asks; use --on {choice.name}, or launcher: auto"
        return [places.mistake(("launcher",), why, choice.name)]
    _replace(tree, places, "launcher", launcher, f"--on {launcher}")
    return []


def _replace(tree: dict[str, Any], places: Places, key: str, value: object, option: str) -> None:
    tree[key] = value
    places.override((key,), option)


def _set(tree: dict[str, Any], places: Places, setting: str, option: str) -> None:
    key, equals, text = setting.partition("=")
    path = _path(key.strip())
    if not equals or path is None:
        message = "expected key=value, for example measure.steps=10"
        raise SuiteError([Mistake(message, file=option)])
    _write_out(tree, path, option)
    path = _in_list(tree, path, option)
    parent = _walk(tree, path, option)
    last = path[-1]
    if isinstance(parent, list) and not (isinstance(last, int) and last < len(parent)):
        raise _refused(option, path, "index out of range")
    parent[last] = parse_value(text, option, path)
    places.override(path, option)
    _drop_axes(tree, places, path, option)


def _path(key: str) -> KeyPath | None:
    if not re.fullmatch(r"[^.\[\]\s]+(\.[^.\[\]]+|\[\d+\])*", key):
        return None
    if key.startswith("axes."):
        return "axes", key.removeprefix("axes.")
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in parts)


def _write_out(tree: dict[str, Any], path: KeyPath, option: str) -> None:
    """Expand a shorthand that *path* leads into to a mapping: ``transformer`` to ``{transformer: {}}``."""
    root = path[0]
    if root == "strategies" and len(path) > 2:
        _write_out_strategy(tree, path, option)
    if len(path) < 2 or root not in (*ROOTS, "launcher") or tree.get(str(root)) is None:
        return
    tree[str(root)] = raw = normal(str(root), tree[str(root)])
    if root in (*PLUGIN_ROOTS, "launcher") and isinstance(raw, dict) and path[1] not in raw:
        raise _refused(option, path, f"not the suite's {root}; {did_you_mean(path[1], raw)}")


def _in_list(tree: dict[str, Any], path: KeyPath, option: str) -> KeyPath:
    """*path* with the place in the list of a metric that it names: ``metrics.telemetry.effect``."""
    if path[0] != "metrics" or len(path) < 2 or isinstance(path[1], int):
        return path
    if tree.get("metrics") is None:
        # all of them, as without the key
        tree["metrics"] = list(registry.names("metrics"))
    listed: list[Any] = tree["metrics"] if isinstance(tree["metrics"], list) else []
    plugins = [named(raw, ("metrics", i)) for i, raw in enumerate(listed)]
    names = [plugin.name for plugin in plugins if not isinstance(plugin, SuiteMistake)]
    for i, plugin in enumerate(plugins):
        if not isinstance(plugin, SuiteMistake) and plugin.name == path[1]:
            listed[i] = plugin.to_raw()
            return ("metrics", i, *path[1:])
    raise _refused(option, path, f"not a metric of the suite; {did_you_mean(path[1], names)}")


def _write_out_strategy(tree: dict[str, Any], path: KeyPath, option: str) -> None:
    """Expand a strategy that *path* leads into to a mapping: ``ddp`` to ``{ddp: {}}``."""
    listed, place = tree.get("strategies"), path[1]
    if not isinstance(listed, list) or not isinstance(place, int) or place >= len(listed):
        return
    plugin = named(listed[place], path[:2])
    if not isinstance(plugin, SuiteMistake):
        listed[place] = plugin.to_raw()
        if path[2] != plugin.name:
            raise _refused(option, path, f"strategies[{place}] is {plugin.name}")


def _walk(tree: dict[str, Any], path: KeyPath, option: str) -> Any:
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
            raise _refused(option, path, f"{key_text(path[:depth])} has no keys below; set all of it instead")
    return node


def _drop_axes(tree: dict[str, Any], places: Places, path: KeyPath, option: str) -> None:
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
            raise _refused(option, path, f"axes.{name} replaces all of {name}; set axes.{name} instead")


def _refused(option: str, path: KeyPath, message: str) -> SuiteError:
    return SuiteError([Mistake(message, key_text(path), file=option)])
