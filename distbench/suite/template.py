"""Render a commented starter suite."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from distbench.core import registry
from distbench.core.errors import did_you_mean
from distbench.suite.sections import field_schema

SuiteGoal = Literal["throughput", "memory", "scaling", "gate"]
SUITE_GOALS: tuple[SuiteGoal, ...] = get_args(SuiteGoal)

_SAMPLES = 8
"""Samples per step on the device with the most samples."""
_SINGLE_LINE = "  - single # one process, no wrapper: the reference for the others"
_ZERO_LINE = "  - zero: {stage: [1, 2, 3]} # a list makes a case of each value"
_STRATEGIES: dict[SuiteGoal, tuple[str, ...]] = {
    "throughput": (_SINGLE_LINE, "  - ddp", "  - fsdp: {sharding: [full, grad_op]}", _ZERO_LINE),
    "memory": (
        *(_SINGLE_LINE, "  - ddp", "  - fsdp: {cpu_offload: [false, true]}", "  - zero: {stage: [2, 3]}"),
        "  - zero: {stage: 3, offload_optimizer: cpu}",
    ),
    "scaling": ("  - ddp", "  - fsdp", "  - zero: {stage: [1, 3]}"),
    "gate": ("  - ddp", "  - fsdp", "  - zero: {stage: [2, 3]}"),
}
GOAL_QUESTIONS: dict[SuiteGoal, str] = {
    "throughput": "Which strategy trains fastest, and what memory does it take?",
    "memory": "Which strategy needs the least memory, and what does that cost in speed?",
    "scaling": "How far does each strategy scale?",
    "gate": "Did a change make training slower or larger?",
}
_ENDS: dict[SuiteGoal, str] = {
    "throughput": "",
    "memory": """
# full: recompute activations in the backward pass instead of keeping them; selective: keep those of matrix
# products and attention, and recompute the rest. All three are measured.
activation_checkpointing: [none, selective, full]
""",
    "scaling": "",
    "gate": """
# Allowed worsening of each number; distbench calibrate says what this machine can resolve.
gate:
  tokens_per_s: 5% # the step may take 5% longer
  peak_memory: 1%
  loss: required # the candidate must have the baseline's losses but for rounding
""",
}
_COMMANDS: dict[SuiteGoal, str] = {**dict.fromkeys(SUITE_GOALS, "run {}"), "gate": "gate {} --self-test"}


@dataclass(frozen=True)
class SuiteAnswers:
    """Answers from which a suite is rendered."""

    model: str
    """Preset of the transformer, or ``package.module:callable`` of the user's own model."""
    devices: tuple[int, ...]
    """World sizes; empty: auto."""
    goal: SuiteGoal
    device: str
    """cpu or cuda: that of the machine where the suite is written, which decides its initial precision."""
    shape: Mapping[str, Any] | None = None
    """``kind``, ``length`` and ``classes`` that a forward pass of the user's own model accepted; empty: none
    was found; None: not tried.
    """


def is_user_model(model: str) -> bool:
    """True if the *model* of an answer is one of the user's own."""
    return ":" in model


def model_problem(model: str) -> str | None:
    """Description of the mistake in the *model* of an answer; None if there is none."""
    if is_user_model(model) or model in _presets():
        return None
    return (
        f"not a preset of the transformer; {did_you_mean(model, _presets())}. A model of your own is a "
        "callable of a file here: mymodel:MyModel of mymodel.py. One of Hugging Face's is a workload: "
        f"{{huggingface: {{model_type: {model}}}}} (distbench list workloads huggingface)"
    )


def _presets() -> list[str]:
    presets: list[str] = field_schema(registry.load_plugin("workloads", "transformer"), "preset")["enum"]
    return presets


def render_suite(answers: SuiteAnswers, file: str) -> str:
    """Render the suite for *answers*, to be stored as *file*."""
    goal = answers.goal
    parts = [
        _head(goal, file),
        _user_model_text(answers) if is_user_model(answers.model) else _workload(answers.model),
        _batch(answers),
        "# distbench list strategies shows the options of each.",
        "strategies:",
        *_STRATEGIES[goal],
        "",
        _precision(answers.device),
        _sizes(answers.devices),
        _measure(goal) + _ENDS[goal],
    ]
    return "\n".join(parts)


def _head(goal: SuiteGoal, file: str) -> str:
    return f"""\
# {GOAL_QUESTIONS[goal]}
#
#   distbench plan {file}    what would run, and how long it takes
#   distbench {_COMMANDS[goal].format(file)}
#
# distbench list suite shows every key. To have an editor complete and check this file:
#   distbench list suite --json-schema > suite.schema.json
# and as the first line of this file:  # yaml-language-server: $schema=suite.schema.json

description: {GOAL_QUESTIONS[goal]}
"""


UNKNOWN_SHAPE_ADVICE = (
    "its input is neither tokens nor numbers (rows, length), or its output is not logits: set kind, "
    "length and classes, and loss_function, a package.module:callable of (module, batch) that returns "
    "the mean loss"
)
_TOKENS: dict[str, Any] = {"kind": "tokens", "length": 128, "classes": 256}
_DIGITS = """\
# Images of 8 x 8 numbers in 10 classes, of scikit-learn; data of your own is a plug-in (docs/plugins.md).
data: digits
"""


def _user_model_text(answers: SuiteAnswers) -> str:
    shape = answers.shape or _TOKENS
    told = {True: "taken from a forward pass of the model", False: UNKNOWN_SHAPE_ADVICE}
    tried = "not tested: check them" if answers.shape is None else told[bool(answers.shape)]
    head = (
        "Called without arguments it returns the nn.Module. kind: tokens, or features with one label "
        f"each; length: of a sample; classes: its vocabulary, or labels; {tried}. layer_classes: "
        "[Block] sets the modules to shard and checkpoint individually (default: the items of the "
        "largest nn.ModuleList)."
    )
    lines = "\n".join(f"# {line}" for line in textwrap.wrap(head, 108))
    return f"""\
{lines}
workload:
  user:
    model: {json.dumps(answers.model)}
    kind: {shape["kind"]}
    length: {shape["length"]}
    classes: {shape["classes"]}
{_DIGITS if shape["kind"] == "features" else ""}"""


def _workload(model: str) -> str:
    return f"""\
# A decoder-only transformer; distbench list workloads shows its options. Your own model:
#   workload: {{user: {{model: "package.module:callable"}}}}
workload:
  transformer:
    preset: {model} # {", ".join(_presets())}
    seq_len: 128
"""


def _batch(answers: SuiteAnswers) -> str:
    if answers.goal == "scaling" or not answers.devices:
        return f"""\
# Samples per optimizer step and device. global_batch_size instead: over all devices, however many.
batch:
  per_device_batch_size: {_SAMPLES}
"""
    return f"""\
# Samples per optimizer step over all devices, however many there are: they share the same work.
batch:
  global_batch_size: {_SAMPLES * max(answers.devices)}
"""


def _precision(device: str) -> str:
    precision = "bf16" if device == "cuda" else "fp32"
    return f"precision: {precision} # fp32, bf16 or fp16\n"


def _sizes(devices: tuple[int, ...]) -> str:
    sizes = json.dumps(list(devices)) if devices else "auto"
    return f"# Numbers of devices; auto: powers of two up to all of them.\nworld_sizes: {sizes}\n"


def _measure(goal: SuiteGoal) -> str:
    trials = "" if goal == "gate" else _TRIALS
    check = "" if goal in ("gate", "scaling") else _CHECK
    return f"measure:\n  warmup: 3\n  steps: 10\n{trials}{check}"


_TRIALS = """\
  trials: 3 # launches per case, from which its interval is computed
  repeat_noisy: 2 # maximum extra launches, to replace trials that other processes disturbed
"""
_CHECK = """
# Also check that each case trains like its reference; false saves the time.
check: true
"""
