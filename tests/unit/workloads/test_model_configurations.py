"""Configurations of Hugging Face models: what is refused, and why."""

import json
from pathlib import Path
from typing import Any

import pytest

from distbench.cli import main
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.workloads.base import Workload
from support.model_families import PUBLISHED


def workload(**options: Any) -> Workload:
    made: Workload = registry.create_plugin("workloads", PluginChoice("huggingface", options))
    return made


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(PUBLISHED))
    return file


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "config = 'config.json': no such file (looked in "),
        ("{", "not JSON"),
        ("[]", "not a configuration of transformers: it has no model_type"),
        (json.dumps({"hidden_size": 8}), "it has no model_type"),
        (json.dumps({**PUBLISHED, "quantization_config": {}}), "its weights are quantized"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_the_reason(published, content, told):
    published.unlink() if content is None else published.write_text(content)
    assert told in str(workload(config="config.json").problem())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("{config: nowhere.json}", "config = 'nowhere.json': no such file (looked in "),
        ("{model_type: llama, config: nowhere.json}", "config = 'nowhere.json': no such file (looked in "),
        ("{config: broken.json}", "config = 'broken.json': "),
        ("{from_pretrained: nowhere}", "from_pretrained = 'nowhere': no such folder (looked in "),
        ("{from_pretrained: meta-llama/Llama-3.2-1B}", "distbench does not download models"),
        ("{from_pretrained: empty}", "from_pretrained = 'empty': "),
    ],
)
def test_a_model_that_can_not_be_read_is_one_mistake_of_the_suite(
    tmp_path, monkeypatch, capsys, options, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty").mkdir()
    suite = f"workload: {{huggingface: {options}}}\nstrategies: [ddp, fsdp]\nworld_sizes: [1, 2]\n"
    (tmp_path / "mine.yaml").write_text(suite + "batch: {global_batch_size: 4}\nprecision: bf16\n")
    assert main(["plan", "mine.yaml"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("distbench: error: ") == 1, errors
    assert errors.startswith("distbench: error: mine.yaml:1: workload.huggingface.")
    assert told in errors
