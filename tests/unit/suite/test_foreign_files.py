"""Files of other tools in place of a suite are named, with the command to use."""

import pytest

from support.runs import call

FILES = {
    "ds_config.json": (
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}',
        "a configuration of DeepSpeed, not a suite; distbench run --from FILE --model MODEL compares it "
        "with its alternatives",
    ),
    "commented.json": (
        '// ours\n{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}',
        "a configuration of DeepSpeed, not a suite; distbench run --from FILE",
    ),
    "trainer_args.json": (
        '{"output_dir": "out", "per_device_train_batch_size": 4}',
        "a file of TrainingArguments, not a suite; distbench run --from FILE --model MODEL",
    ),
    "config.json": (
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
        "a configuration of a model of transformers, not a suite; distbench run --from FILE",
    ),
    "job.yaml": (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}\n---\napiVersion: v1\nkind: Service\n",
        "a Kubernetes manifest (kind: PyTorchJob), not a suite; print those of a suite with distbench launch "
        "SUITE --on kubernetes --print",
    ),
    "job.sbatch": (
        "#!/bin/bash\n#SBATCH -N 2\nsrun python train.py --key: 1\n",
        "a batch script for Slurm, not a suite; submit a suite with distbench launch SUITE --on slurm",
    ),
    "run.sh": ("#!/usr/bin/env bash\ntorchrun train.py\n", "a shell script, not a suite; distbench init"),
    "default_config.yaml": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n",
        "a configuration of Accelerate, not a suite; distbench run --from FILE",
    ),
    "rank0.trace.json": (
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "aten::mm"}]}',
        "a trace, not a suite; distbench trace FILE explains it",
    ),
    "train.py": (
        "import torch\n\nmodel = torch.nn.Linear(1, 1)\n",
        "a Python script, not a suite; distbench run --model package.module:callable",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_tool_is_named_in_one_line_with_what_to_do(name, tmp_path):
    text, told = FILES[name]
    (tmp_path / name).write_text(text)
    done = call("plan", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"distbench: error: {tmp_path / name}: this is {told}")
    assert done.stderr.count("\n") == 1


def test_a_suite_may_say_what_other_tools_files_say(tmp_path):
    suite = tmp_path / "suite.yaml"
    said = 'description: |\n  import torch\n  its "traceEvents" are kept\n'
    suite.write_text(f"{said}workload: mlp\nbatch: {{global_batch_size: 8}}\nstrategies: [ddp]\n")
    done = call("plan", str(suite))
    assert done.returncode == 0, done.stderr


def test_a_suite_without_its_main_keys_is_told_what_is_missing(tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: nothing\n")
    done = call("plan", str(suite))
    assert done.returncode == 2
    assert "workload: missing" in done.stderr
