"""Configuration files of other frameworks, as they are found."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from distbench.core.errors import UsageError
from distbench.suite.configurations.accelerate_yaml import is_accelerate, read_accelerate
from distbench.suite.configurations.deepspeed_json import is_deepspeed, read_deepspeed
from distbench.suite.configurations.settings import DescribedTraining, SettingError
from distbench.suite.configurations.torchtitan_toml import is_torchtitan, read_torchtitan
from distbench.suite.configurations.trainer_arguments import is_trainer, read_trainer
from distbench.system.files import read_bounded

_MAX_BYTES = 1 << 20
# a text, or a comment as tutorials write them
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def read_configuration(file: Path) -> DescribedTraining:
    """The training that *file* describes.

    Raises:
        UsageError: it can't be read, or is no configuration of a framework that distbench knows.
    """
    settings = _mapping(file)
    if is_accelerate(settings):
        return read_accelerate(settings, lambda name: _mapping(_beside(file, name)))
    if is_deepspeed(settings):
        return read_deepspeed(settings)
    if is_trainer(settings):
        try:
            return read_trainer(settings, lambda name: _mapping(_beside(file, name)))
        except SettingError as error:
            raise UsageError(f"{file}: {error}") from error
    if is_torchtitan(settings):
        return read_torchtitan(settings)
    if "strategies" in settings:
        raise UsageError(f"{file}: this is a suite; run it with: distbench run {shlex.quote(str(file))}")
    raise UsageError(
        f"{file}: no configuration of DeepSpeed (zero_optimization, train_batch_size, ...), Accelerate "
        "(distributed_type, ...), the Trainer (per_device_train_batch_size, output_dir, ...) or torchtitan "
        "(TOML with the sections training, parallelism, ...)"
    )


def model_of_transformers(file: Path) -> dict[str, Any] | None:
    """Configuration of a model, if *file* is the ``config.json`` of one of transformers; None: it is none.

    Raises:
        UsageError: it can't be read.
    """
    settings = _mapping(file)
    return dict(settings) if isinstance(settings.get("model_type"), str) else None


def _beside(file: Path, name: str) -> Path:
    """File *name* of *file*: as Accelerate finds it, or beside *file*."""
    return Path(name) if Path(name).is_file() else file.parent / name


def _mapping(file: Path) -> Mapping[str, Any]:
    try:
        text = read_bounded(file, _MAX_BYTES, follow=True).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 text") from error
    if not text.strip():
        raise UsageError(f"{file}: the file is empty")
    found = _parsed(text, file)
    if not isinstance(found, Mapping):
        raise UsageError(f"{file}: expected a mapping of keys, not {type(found).__name__}")
    return found


def _parsed(text: str, file: Path) -> Any:
    if file.suffix == ".py":
        raise UsageError(
            f"{file}: distbench runs no Python to read a configuration, such as that of torchtitan 0.3: give "
            "--from the TOML of torchtitan 0.2 with the same settings. Of a training script, name the model "
            "and the dataset: distbench run --model module:callable --data module:callable"
        )
    if file.suffix == ".toml":
        return _toml(text, file)
    return _json(text, file) if text.lstrip()[:1] in ("{", "[", "/") else _yaml(text, file)


def _toml(text: str, file: Path) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from error


def _json(text: str, file: Path) -> Any:
    # comments keep their lines, which messages name
    plain = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
    try:
        return json.loads(plain)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise UsageError(f"{file}:{line}: not JSON: {getattr(error, 'msg', error)}") from error


def _yaml(text: str, file: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        line = mark.line + 1 if (mark := getattr(error, "problem_mark", None)) else 1
        raise UsageError(f"{file}:{line}: not YAML: {getattr(error, 'problem', error)}") from error
