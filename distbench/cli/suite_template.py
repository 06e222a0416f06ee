"""Render a commented starter suite."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from distbench.core.errors import did_you_mean
from distbench.core.user_callables import callable_problem

SuiteGoal = Literal["throughput", "memory", "scaling", "gate"]
SUITE_GOALS: tuple[SuiteGoal, ...] = get_args(SuiteGoal)
GOAL_QUESTIONS: dict[SuiteGoal, str] = {
    "throughput": "Which strategy trains fastest, and what memory does it take?",
    "memory": "Which strategy needs the least memory, and what does that cost in speed?",
    "scaling": "How far does each strategy scale?",
    "gate": "Did a change make training slower or larger?",
}
UNKNOWN_SHAPE_ADVICE = (
    "its input is neither tokens nor numbers (rows, length), or its output is not logits: set kind, "
    "length and classes, and loss_function, a package.module:callable of (module, batch) that returns "
    "the mean loss"
)
_SAMPLES = 8
"""Samples per step on the device with the most samples."""
_TOKENS: Mapping[str, Any] = {"kind": "tokens", "length": 128, "classes": 256}
_TEMPLATE = Path(__file__).with_name("suite.yaml.jinja")


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
    """Shape of a sample, as ``complete_shape`` takes it; without classes no forward pass gave logits; None:
    not tried.
    """
    data: str = ""
    """``package.module:callable`` of the user's own dataset; empty: what suits the model."""
    data_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that dataset."""


def is_user_callable(answer: str) -> bool:
    """True if an *answer* names something of the user's own, and nothing of distbench."""
    return ":" in answer


def model_problem(model: str) -> str | None:
    """Description of the mistake in the *model* of an answer; None if there is none."""
    if is_user_callable(model):
        return callable_problem(model)
    if model in presets():
        return None
    return (
        f"not a preset of the transformer; {did_you_mean(model, presets())}. A model of your own is a "
        "callable of a file here: mymodel:MyModel of mymodel.py. One of Hugging Face's is a workload: "
        f"{{huggingface: {{model_type: {model}}}}} (distbench list workloads huggingface)"
    )


def complete_shape(shape: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options ``kind``, ``classes`` and sizes of a sample of the workload ``user``.

    Args:
        shape: Those that are known, from a forward pass of the model or a row of the dataset; None: none.
    """
    known = dict(shape or {})
    usual = {key: _TOKENS[key] for key in _TOKENS if key != "length" or known.get("kind") != "images"}
    return {**usual, **known}


def user_data(dataset: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Section ``data`` for a *dataset* of the user's own, with *options*."""
    return {"user": {"dataset": dataset, **(options or {})}}


def presets() -> list[str]:
    """Presets of the transformer."""
    from distbench.core import registry
    from distbench.suite.sections import field_schema

    names: list[str] = field_schema(registry.load_plugin("workloads", "transformer"), "preset")["enum"]
    return names


def render_suite(answers: SuiteAnswers, file: str) -> str:
    """Render the suite for *answers*, to be stored as *file*."""
    import jinja2

    template = jinja2.Template(
        _TEMPLATE.read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    text: str = template.render(
        file=file,
        goal=answers.goal,
        question=GOAL_QUESTIONS[answers.goal],
        model=answers.model,
        presets=presets(),
        is_user_model=is_user_callable(answers.model),
        user_model_advice=_user_model_advice(answers.shape),
        shape=complete_shape(answers.shape),
        data=json.dumps(user_data(answers.data, answers.data_options)) if answers.data else "",
        devices=answers.devices,
        device=answers.device,
        samples=_SAMPLES,
    )
    return text


def _user_model_advice(shape: Mapping[str, Any] | None) -> list[str]:
    """Lines on the options of a user's own model, and whether its *shape* was tried."""
    if shape is None:
        tried = "not tested: check them"
    else:
        tried = "taken from a forward pass of the model" if "classes" in shape else UNKNOWN_SHAPE_ADVICE
    return textwrap.wrap(
        "Called without arguments it returns the nn.Module. kind: tokens, or features with one label each; "
        f"length: of a sample; classes: its vocabulary, or labels; {tried}. layer_classes: [Block] sets the "
        "modules to shard and checkpoint individually (default: the items of the largest nn.ModuleList).",
        108,
    )
