"""Find and load plug-ins: one file or folder each, named in a suite as the file or folder is.

A plug-in is a frozen dataclass in ``distbench/<kind>/<name>.py`` or ``distbench/<kind>/<name>/__init__.py``,
or in the same place below any folder listed in ``DISTBENCH_PLUGINS`` (separated as ``PATH`` is). A folder
also holds the plug-in's own helper modules. The fields are the options in YAML; the string under a field
documents it.
Importing a plug-in is cheap: torch and deepspeed are imported inside functions only.
"""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from distbench.core.case import PluginChoice
from distbench.core.errors import RecordError, UsageError, did_you_mean
from distbench.core.serialization import decode

PLUGIN_KINDS = ("strategies", "engines", "workloads", "data", "metrics", "launchers", "jobs", "views")
PLUGIN_PATH_VARIABLE = "DISTBENCH_PLUGINS"
# lower layers use job kinds, so the base of job kinds lies below them
_SEAMS = {"jobs": "distbench.core.job"}
_PACKAGE = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class OptionInfo:
    """One option of a plug-in, as ``distbench list`` shows it."""

    name: str
    type: str
    default: str
    doc: str


def plugin_names(kind: str) -> list[str]:
    """Names of all plug-ins of *kind*, sorted."""
    return sorted(_plugin_files(kind, os.environ.get(PLUGIN_PATH_VARIABLE, "")))


def load_plugin(kind: str, name: str) -> type[Any]:
    """Class of plug-in *name*.

    Raises:
        UsageError: there is no such plug-in, or its file can't be imported.
    """
    return _load(kind, name, os.environ.get(PLUGIN_PATH_VARIABLE, ""))


@functools.cache
def built_in_plugins(kind: str) -> Mapping[str, type[Any]]:
    """distbench's own plug-ins of *kind* by name; safe for reading records, as no foreign code runs."""
    return {name: _load(kind, name, "") for name in sorted(_plugin_files(kind, ""))}


def create_plugin(kind: str, choice: PluginChoice) -> Any:
    """Create the plug-in that *choice* names, with its options.

    Options come from JSON, which only has lists; a frozen plug-in holds tuples.
    """
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in choice.options.items()}
    return load_plugin(kind, choice.name)(**given)


def decode_built_in(kind: str, choice: PluginChoice) -> Any | None:
    """Built-in plug-in with recorded options; None: a plug-in of users, or options of another version."""
    cls = built_in_plugins(kind).get(choice.name)
    if cls is None or choice.options.keys() - {field.name for field in dataclasses.fields(cls)}:
        return None
    try:
        return decode(cls, choice.options, choice.name)
    except (RecordError, TypeError, ValueError, LookupError):
        # records are untrusted: options may be unknown, of the wrong type, or incompatible
        return None


def load_submodule_plugin(kind: str, name: str, module: str, base: type[Any]) -> type[Any] | None:
    """Subclass of *base* in *module* of a plug-in that is a folder; None: it has no such module.

    Raises:
        UsageError: there is no such plug-in, or the module can't be imported or does not have one such class.
    """
    package = sys.modules[load_plugin(kind, name).__module__]
    if not hasattr(package, "__path__"):
        return None
    full_name = f"{package.__name__}.{module}"
    spec = importlib.util.find_spec(full_name)
    if spec is None or not spec.origin:
        return None
    with _import_errors_reported(spec.origin):
        imported = importlib.import_module(full_name)
    return _single_plugin_class(imported, base)


def option_infos(plugin: type[Any]) -> list[OptionInfo]:
    """Options of *plugin* with the docs under its fields."""
    docs, types = _field_docs(plugin), _type_texts(plugin)
    return [
        OptionInfo(field.name, types[field.name], _default_text(field), docs.get(field.name, ""))
        for field in dataclasses.fields(plugin)
    ]


def summary(plugin: type[Any]) -> str:
    """First paragraph of the plug-in's docstring; empty: it has none of its own."""
    doc = inspect.getdoc(plugin)
    # ``dataclass`` writes the signature
    return "" if doc and doc.startswith(f"{plugin.__name__}(") else _first_paragraph(doc)


def has_options(kind: str) -> bool:
    """True if a suite gives options to plug-ins of *kind*."""
    return bool(getattr(_base_module(kind), "HAS_OPTIONS", True))


def file_summary(kind: str, name: str) -> str:
    """First paragraph of the docstring of a plug-in's file, read without importing it."""
    tree = ast.parse(
        _plugin_files(kind, os.environ.get(PLUGIN_PATH_VARIABLE, ""))[name].read_text(encoding="utf-8")
    )
    return _first_paragraph(ast.get_docstring(tree))


def submodule_summaries(kind: str, module: str) -> dict[str, str]:
    """First paragraph of *module* of each plug-in of *kind* that has it, by the plug-in's name."""
    files = _plugin_files(kind, os.environ.get(PLUGIN_PATH_VARIABLE, ""))
    found = {
        name: file.with_name(f"{module}.py") for name, file in files.items() if file.name == "__init__.py"
    }
    return {
        name: _first_paragraph(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))))
        for name, file in sorted(found.items())
        if file.is_file()
    }


def _first_paragraph(doc: str | None) -> str:
    text = " ".join((doc or "").split("\n\n")[0].split())
    # a list has the name beside it, and no markup
    return re.sub(r"^(The v|V)iew ``\w+``: ", "", text)


def _singular(kind: str) -> str:
    return {"strategies": "strategy", "data": "data source"}.get(kind, kind.removesuffix("s"))


def _plugin_files(kind: str, plugin_path: str) -> dict[str, Path]:
    """File of each plug-in of *kind* by name; of *plugin_path* not cached, so a new file counts."""
    places = dict(_own_files(kind))
    for part in filter(None, plugin_path.split(os.pathsep)):
        for name, file in _files_in(Path(part) / kind):
            places.setdefault(name, file)
    return places


# a suite asks for the names some twenty times
@functools.cache
def _own_files(kind: str) -> Mapping[str, Path]:
    """File of each of distbench's own plug-ins of *kind* by name."""
    # shared modules, which plug-ins may use
    helpers = getattr(_base_module(kind), "HELPERS", ())
    return {name: file for name, file in _files_in(_PACKAGE / kind) if name not in helpers}


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each plug-in in *folder*, which need not exist."""
    try:
        entries = os.scandir(folder)
    except OSError:
        # a plug-in folder need not have every kind
        return
    with entries:
        for entry in entries:
            name, file = _entry_file(entry)
            if file and not name.startswith("_") and name not in ("", "base"):
                yield name, file


def _entry_file(entry: os.DirEntry[str]) -> tuple[str, Path | None]:
    stem, _, suffix = entry.name.partition(".")
    if suffix == "py":
        return stem, Path(entry.path)
    package = Path(entry.path, "__init__.py")
    return entry.name, package if not suffix and package.is_file() else None


def _base_module(kind: str) -> ModuleType:
    return importlib.import_module(_SEAMS.get(kind, f"distbench.{kind}.base"))


# a plan of many cases loads the same few plug-ins thousands of times; an error is not cached
@functools.cache
def _load(kind: str, name: str, plugin_path: str) -> type[Any]:
    places = _plugin_files(kind, plugin_path)
    if name not in places:
        raise UsageError(f"unknown {_singular(kind)} {name!r}: {did_you_mean(name, places)}")
    return _single_plugin_class(_import_plugin(kind, name, places[name]), _base_module(kind).PLUGIN_BASE)


def _import_plugin(kind: str, name: str, file: Path) -> ModuleType:
    if file.is_relative_to(_PACKAGE / kind):
        return importlib.import_module(f"distbench.{kind}.{name}")
    full_name = f"distbench_plugins.{kind}.{name}"
    helpers = [str(file.parent)] if file.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(full_name, file, submodule_search_locations=helpers)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up there while the class is being made
    sys.modules[full_name] = module
    with _import_errors_reported(str(file)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _import_errors_reported(file: str) -> Iterator[None]:
    """Turn whatever a plug-in (foreign code) raises into a UsageError about its *file*."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(f"{file}: can't import this plug-in: {error!r}") from error


def _single_plugin_class(module: ModuleType, base: type[Any]) -> type[Any]:
    classes = [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
        and not name.startswith("_")
    ]
    if len(classes) != 1:
        raise UsageError(
            f"{module.__file__}: a plug-in must define exactly one public subclass of "
            f"{base.__module__}.{base.__name__}, found {len(classes)}"
        )
    return classes[0]


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


def _type_texts(plugin: type[Any]) -> dict[str, str]:
    try:
        # resolving replaces an alias by its target and drops bounds
        hints = typing.get_type_hints(plugin)
    except NameError:
        # the checks of a suite report it; here the types are shown as written
        return {field.name: str(field.type) for field in dataclasses.fields(plugin)}
    plain = {name for name, hint in hints.items() if isinstance(hint, type) and not typing.get_args(hint)}
    return {
        name: hint.__name__ if name in plain else str(hint).replace("typing.", "")
        for name, hint in hints.items()
    }


def _default_text(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required"
