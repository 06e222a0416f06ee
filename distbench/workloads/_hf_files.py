"""Configurations and weights of Hugging Face in local files. Without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distbench.system.files import read_bounded

_MAX_BYTES = 1 << 24
_INDEX = "model.safetensors.index.json"

# keys that say nothing about the model, or that the workload or the suite decides
_IGNORED_KEYS = (
    *(
        "architectures",
        "transformers_version",
        "auto_map",
        "dtype",
        "torch_dtype",
        "use_cache",
        "return_dict",
    ),
    *("output_attentions", "output_hidden_states", "label2id", "is_decoder"),
)


def stored_configuration(named: str, file: Path) -> dict[str, Any]:
    """Keys of a config.json that decide the model, without dropout; *named* is the option that names it.

    Raises:
        ValueError: it can't be read, or describes no model that distbench can train.
    """
    try:
        return _configuration(file)
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from error


def _configuration(file: Path) -> dict[str, Any]:
    try:
        given = json.loads(read_bounded(file, _MAX_BYTES, follow=True))
    except FileNotFoundError:
        raise ValueError(f"no such file (looked in {Path.cwd()})") from None
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(given, dict) or not isinstance(given.get("model_type"), str):
        raise ValueError("not a configuration of transformers: it has no model_type")
    if "quantization_config" in given:
        raise ValueError("its weights are quantized (quantization_config); use the model before quantization")
    return deciding_keys(given)


def deciding_keys(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a *configuration* of transformers that decide the model, without dropout."""
    return {key: value for key, value in configuration.items() if _decides(key, value)}


def folder_problem(folder: Path) -> str | None:
    """Reason why the weights of a model can't be loaded from *folder*; None if they can."""
    if not folder.is_dir():
        return (
            f"no such folder (looked in {Path.cwd()}); distbench does not download models; download it "
            "first with: hf download NAME --local-dir FOLDER"
        )
    if not (folder / "config.json").is_file():
        adapter = " (it contains an adapter; merge its weights into the base model)"
        return f"contains no config.json{adapter if (folder / 'adapter_config.json').is_file() else ''}"
    present = {file.name for file in folder.glob("*.safetensors")}
    if (folder / _INDEX).is_file():
        if absent := sorted(_shards(folder / _INDEX) - present):
            return f"does not contain {', '.join(absent)}, which {_INDEX} refers to"
        return None
    if "model.safetensors" in present:
        return None
    pickled = " (a .bin file is a pickle, which can run code)" if any(folder.glob("*.bin")) else ""
    return f"contains neither model.safetensors nor {_INDEX}, the only supported weights{pickled}"


def _shards(index: Path) -> set[str]:
    try:
        return set(json.loads(read_bounded(index, _MAX_BYTES, follow=True))["weight_map"].values())
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return {f"a {_INDEX} that can be read"}


def _decides(key: str, value: object) -> bool:
    is_off = is_noise(key) and isinstance(value, int | float) and not isinstance(value, bool)
    return not (is_off or key in _IGNORED_KEYS or key.startswith("_"))


def is_noise(key: str) -> bool:
    """True if *key* of a configuration sets dropout or the jitter of routers."""
    return "drop" in key or "jitter" in key
