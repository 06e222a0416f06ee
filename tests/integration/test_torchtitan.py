"""What torchtitan's own parsers make of the configuration that adopt writes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from distbench.adopt import ExportedCase, export_case, supported_formats
from distbench.core.case import Case
from support.adopted_cases import ALL
from support.environments import torchtitan

READ = """
import dataclasses, json, sys
from torchtitan.config.manager import ConfigManager
sections = ("training", "parallelism", "optimizer", "lr_scheduler", "compile", "debug")
read = []
for arguments in json.loads(sys.argv[1]):
    config = ConfigManager().parse_args(arguments)
    found = {name: dataclasses.asdict(getattr(config, name)) for name in sections}
    policy = config.activation_checkpoint
    found["policy"] = getattr(policy, "mode", None) or type(policy).__qualname__.partition(".")[0]
    read.append(found)
print("\\n" + json.dumps(read))
"""


def read(python: Path, folder: Path, arguments: list[list[str]]) -> list[dict[str, Any]]:
    """The configurations that torchtitan has of several *arguments*, in *folder*."""
    command = [str(python / "bin" / "python"), "-c", READ, json.dumps(arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def written(format_: str, folder: Path) -> dict[str, Case]:
    """Cases that *format_* can say, by the folder that each is in."""
    cases = {name: one for name, one in ALL.items() if format_ in supported_formats(ExportedCase.of(one, {}))}
    for name, one in cases.items():
        (folder / _module(name)).mkdir()
        for file, text in export_case(format_, one, {}).files.items():
            (folder / _module(name) / file).write_text(text)
    assert len(cases) > 10
    return {_module(name): one for name, one in cases.items()}


def _module(name: str) -> str:
    return name.replace("-", "_")


def check(case: Case, found: dict[str, Any]) -> None:
    """What both versions call alike is that of the case."""
    training, parallelism = found["training"], found["parallelism"]
    assert training["local_batch_size"] == case.batch.micro_batch_size
    assert training["global_batch_size"] == case.batch.global_batch_size
    assert (
        training["mixed_precision_param"] == {"fp32": "float32", "bf16": "bfloat16"}[case.precision.compute]
    )
    dimensions = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel")
    degrees = [parallelism[f"{name}_degree"] for name in (*dimensions, "context_parallel")]
    product = 1
    for degree in degrees:
        product *= degree
    assert product == case.world_size
    assert found["debug"]["seed"] == case.seed
    assert found["compile"]["enable"] == (case.compile != "none")


@pytest.mark.deep
def test_version_0_3_reads_its_python_file(tmp_path):
    titan = torchtitan(tmp_path / "titan", "0.3.0")
    cases = written("torchtitan", tmp_path)
    assert cases
    arguments = [[f"--module={name}.torchtitan_config", "--config=measured"] for name in cases]
    for case, found in zip(cases.values(), read(titan, tmp_path, arguments), strict=True):
        check(case, found)
        (group,) = found["optimizer"]["param_groups"]
        assert group["optimizer_kwargs"]["lr"] == case.optimizer.lr
        assert found["training"]["max_norm"] == case.optimizer.clip_grad_norm
        policies = {"none": "NoneType", "full": "FullAC", "selective": "SelectiveAC"}
        assert found["policy"] == policies[case.activation_checkpointing]


@pytest.mark.deep
def test_version_0_2_reads_its_toml_file(tmp_path):
    titan = torchtitan(tmp_path / "titan", "0.2.2")
    cases = written("torchtitan-toml", tmp_path)
    assert cases
    arguments = [[f"--job.config_file={name}/torchtitan.toml"] for name in cases]
    for case, found in zip(cases.values(), read(titan, tmp_path, arguments), strict=True):
        check(case, found)
        assert found["optimizer"]["lr"] == case.optimizer.lr
        assert found["policy"] == case.activation_checkpointing
