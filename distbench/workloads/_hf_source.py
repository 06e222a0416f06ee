"""Facts about the installed transformers, read from its source: importing it would import torch."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TASKS = {
    "causal-lm": "CAUSAL_LM",
    "masked-lm": "MASKED_LM",
    "seq2seq": "SEQ_TO_SEQ_CAUSAL_LM",
    "image-classification": "IMAGE_CLASSIFICATION",
}
"""Task -> part of the name of transformers' table of models for it."""

# accepted by every configuration, and stored under other names
EXTRA_KEYS = ("attn_implementation", "experts_implementation", "rope_scaling", "rope_theta", "num_labels")


@dataclass(frozen=True)
class ConfigKeys:
    """Keys of the configuration of an architecture."""

    defaults: dict[str, Any]
    """Every key with its default; None if the default is computed."""
    aliases: dict[str, str]
    """Other names of keys."""
    shared: frozenset[str] = frozenset()
    """Keys that every configuration has, most of which are about loading and generating."""

    @property
    def own(self) -> set[str]:
        """Names of keys that describe the architecture."""
        return {*self.defaults, *self.aliases, *self.aliases.values()} - self.shared

    @property
    def names(self) -> set[str]:
        """Names that a configuration may have."""
        return {*self.defaults, *self.aliases, *self.aliases.values(), *EXTRA_KEYS}

    def value(self, key: str, given: dict[str, Any]) -> Any:
        """Value of *key*, under any of its names, in a configuration that stores *given*."""
        same = {self.aliases.get(key, key), *(each for each, of in self.aliases.items() if of == key), key}
        stored = [given[name] for name in same if name in given]
        return stored[0] if stored else self.defaults.get(self.aliases.get(key, key))


@functools.cache
def model_types_for(task: str) -> tuple[str, ...]:
    """Architectures that transformers has for *task*; empty if its source is not readable."""
    return tuple(_table("modeling_auto.py", f"MODEL_FOR_{TASKS[task]}_MAPPING_NAMES"))


@functools.cache
def config_keys(model_type: str) -> ConfigKeys | None:
    """Keys of the configuration of *model_type*, or None if its source is not readable."""
    name = _configurations().get(model_type)
    base = _parse_class("configuration_utils.py", "PreTrainedConfig")
    if name is None or base is None:
        return None
    models = _root() / "models"
    own = sorted((models / model_type.replace("-", "_")).glob("configuration_*.py"))
    for file in own or sorted(models.glob("*/configuration_*.py")):
        if f"class {name}(" not in (source := file.read_text(encoding="utf-8")):
            continue
        classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
        lineage = list(_lineage(name, classes))
        known = [each for each in reversed(lineage) if each]
        if len(known) < len(lineage):
            return None
        of_all = _class_keys([base]).defaults.keys() - _class_keys(known).defaults.keys()
        return replace(_class_keys([base, *known]), shared=frozenset(of_all))
    return None


def is_encoder(model_type: str) -> bool:
    """True if a causal LM of *model_type* sees later tokens unless its configuration has ``is_decoder``."""
    keys = config_keys(model_type)
    names = keys.defaults if keys else {}
    has_masked = "add_cross_attention" in names or model_type in model_types_for("masked-lm")
    # the decoder of an encoder-decoder model sets it itself
    return "is_decoder" in names and has_masked and model_type not in model_types_for("seq2seq")


def other_tasks_text(model_type: str, task: str, types: tuple[str, ...]) -> str:
    """Tasks that take *model_type*, or names like it that *task* takes."""
    others = [each for each in TASKS if model_type in model_types_for(each)]
    if others:
        return f"is not for task: {task}; set task: {' or '.join(others)}"
    near = ", ".join(difflib.get_close_matches(model_type, types, n=3)) or ", ".join(types[:3])
    return (
        f"is not a model for task: {task} in the installed transformers, which has {len(types)}, such "
        f"as {near}; the workload 'user' with loss_function supports any module"
    )


def _lineage(name: str, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef | None]:
    """Yield class *name* and its bases in the same file; None for a base from elsewhere that has keys."""
    yield classes[name]
    for base in classes[name].bases:
        above = ast.unparse(base)
        if above in classes:
            yield from _lineage(above, classes)
        elif above != "PreTrainedConfig" and not above.endswith("Mixin"):
            yield None


def _class_keys(lineage: list[ast.ClassDef]) -> ConfigKeys:
    defaults: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for node in (node for each in lineage for node in each.body):
        if isinstance(node, ast.FunctionDef):
            defaults = {**dict.fromkeys(_keys_in_function(node)), **defaults}
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_field = isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
            if ast.unparse(target) == "attribute_map":
                aliases |= _literal(node.value) or {}
            elif is_field:
                defaults[ast.unparse(target)] = _literal(node.value)
    return ConfigKeys(defaults, aliases)


def _keys_in_function(function: ast.FunctionDef) -> Iterator[str]:
    """Yield keys that *function* of a configuration takes or sets: parameters, ``kwargs``, attributes."""
    if any(ast.unparse(each) == "property" for each in function.decorator_list):
        yield function.name
    if function.name == "__init__":
        yield from (each.arg for each in (*function.args.args[1:], *function.args.kwonlyargs))
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("kwargs.pop", "kwargs.get"):
            yield str(_literal(node.args[0]))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _literal(node: ast.expr | None) -> Any:
    try:
        # 4096 * 32 is no literal; a computed default is unknown
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


@functools.cache
def _configurations() -> dict[str, str]:
    """Architecture -> class of its configuration."""
    name = "CONFIG_MAPPING_NAMES"
    return _table("auto_mappings.py", name) or _table("configuration_auto.py", name)


def _table(file: str, name: str) -> dict[str, str]:
    """Table *name* of transformers' auto classes: name -> name."""
    source = _root() / "models" / "auto" / file
    if not source.is_file():
        return {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            lists = [each for each in ast.walk(node.value) if isinstance(each, ast.List)]
            pairs = [_literal(each) for each in lists[0].elts] if lists else []
            return {pair[0]: pair[1] for pair in pairs if isinstance(pair, tuple)}
    return {}


@functools.cache
def _parse_class(file: str, name: str) -> ast.ClassDef | None:
    """Class *name* of a file of transformers."""
    source = _root() / file
    body = ast.parse(source.read_text(encoding="utf-8")).body if source.is_file() else []
    return next((node for node in body if isinstance(node, ast.ClassDef) and node.name == name), None)


@functools.cache
def _root() -> Path:
    """Folder of transformers; one that does not exist if it is not installed."""
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec and spec.origin else Path("transformers is not installed")
