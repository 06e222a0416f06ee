"""Finds plug-ins: one file is one plug-in, and the file's name is its name in a suite.

A plug-in is a frozen dataclass in ``distbench/<kind>/<name>.py``, or in
``<folder>/<kind>/<name>.py`` for any folder named in ``DISTBENCH_PLUGINS`` (a list separated
as ``PATH`` is). Its fields are its options in YAML; the string under a field documents it.
Importing a plug-in is cheap: torch and deepspeed are imported inside functions only.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from distbench.case import Choice
from distbench.errors import UsageError, did_you_mean

KINDS = ("strategies", "workloads", "data", "metrics", "launchers")
PLUGIN_PATH = "DISTBENCH_PLUGINS"
_HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a plug-in, as ``distbench list`` shows it."""

    name: str
    type: str
    default: str
    doc: str


def names(kind: str) -> list[str]:
    """Return the names of all plug-ins of *kind*, sorted."""
    return sorted(_places(kind, os.environ.get(PLUGIN_PATH, "")))


def load(kind: str, name: str) -> type[Any]:
    """Return the class of plug-in *name*.

    Raises:
        UsageError: there is no such plug-in, or its file can't be imported.
    """
    return _load(kind, name, os.environ.get(PLUGIN_PATH, ""))


def make(kind: str, choice: Choice) -> Any:
    """Return the plug-in that *choice* names, made with the options that it gives.

    Options come from JSON, which has lists only; a frozen plug-in holds tuples.
    """
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in choice.options.items()}
    return load(kind, choice.name)(**given)


def options(plugin: type[Any]) -> list[Option]:
    """Return the options of *plugin* with the docs that stand under its fields."""
    docs = _field_docs(plugin)
    return [
        Option(field.name, _type_text(field.type), _default_text(field), docs.get(field.name, ""))
        for field in dataclasses.fields(plugin)
    ]


def summary(plugin: type[Any]) -> str:
    """Return the first paragraph of the plug-in's docstring."""
    return " ".join((inspect.getdoc(plugin) or "").split("\n\n")[0].split())


def _singular(kind: str) -> str:
    return {"strategies": "strategy", "data": "data source"}.get(kind, kind.removesuffix("s"))


def _places(kind: str, plugin_path: str) -> dict[str, Path]:
    """Return the folder of each plug-in; read afresh each time, so a file counts once it is there."""
    found: dict[str, Path] = {}
    for folder in [_HERE / kind, *[Path(part) / kind for part in plugin_path.split(os.pathsep) if part]]:
        try:
            entries = os.scandir(folder)
        except OSError:
            # a plug-in folder need not have every kind
            continue
        with entries:
            for entry in entries:
                stem, _, suffix = entry.name.partition(".")
                if suffix == "py" and not stem.startswith("_") and stem not in ("", "base"):
                    found.setdefault(stem, folder)
    return found


def _base(kind: str) -> type[Any]:
    base: type[Any] = importlib.import_module(f"distbench.{kind}.base").PLUGIN_BASE
    return base


# a plan of many cases asks for the same few plug-ins thousands of times; a refusal is not kept
@functools.cache
def _load(kind: str, name: str, plugin_path: str) -> type[Any]:
    places = _places(kind, plugin_path)
    if name not in places:
        raise UsageError(f"unknown {_singular(kind)} {name!r}: {did_you_mean(name, places)}")
    return _only_plugin(_module(kind, name, places[name] / f"{name}.py"), _base(kind))


def _module(kind: str, name: str, file: Path) -> ModuleType:
    if file.parent == _HERE / kind:
        return importlib.import_module(f"distbench.{kind}.{name}")
    full_name = f"distbench_plugins.{kind}.{name}"
    spec = importlib.util.spec_from_file_location(full_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up there while the class is being made
    sys.modules[full_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # a plug-in is foreign code: whatever it raises is a message about that file
        raise UsageError(f"{file}: this plug-in can't be imported: {error!r}") from error
    return module


def _only_plugin(module: ModuleType, base: type[Any]) -> type[Any]:
    found = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    if len(found) != 1:
        raise UsageError(
            f"{module.__file__}: a plug-in file defines exactly one public subclass of "
            f"{base.__module__}.{base.__name__}, found {len(found)}"
        )
    return found[0]


def _field_docs(plugin: type[Any]) -> dict[str, str]:
    docs: dict[str, str] = {}
    for cls in reversed(plugin.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        body = _class_definition(cls)
        for field, after in zip(body.body, body.body[1:], strict=False):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_doc:
                docs[field.target.id] = " ".join(str(after.value.value).split())  # type: ignore[attr-defined]
    return docs


def _class_definition(cls: type[Any]) -> ast.ClassDef:
    # inspect.getsource tokenizes the whole file as well: half of the time of ``distbench list``
    tree = ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8"))
    return next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )


def _type_text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"
