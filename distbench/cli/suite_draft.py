"""Render a suite that compares a training that exists with its alternatives."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distbench.cli.suite_template import complete_shape, is_user_callable, model_problem
from distbench.core.case import LoaderConfig, PluginChoice
from distbench.core.errors import UsageError
from distbench.run.user_models import RowResult
from distbench.suite.cells import LABEL_OPTION
from distbench.suite.plugin_options import PluginChecker

_TEMPLATE = Path(__file__).with_name("drafted_suite.yaml.jinja")
OWN_LABEL = "yours"
"""Label of the training that exists."""
_LEAST_WARMUP = 3
_ALTERNATIVES = (
    PluginChoice("ddp"),
    PluginChoice("fsdp"),
    PluginChoice("zero", {"stage": 2}),
    PluginChoice("zero", {"stage": 3}),
)


_TASKS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForConditionalGeneration": "seq2seq",
    "ForImageClassification": "image-classification",
}
"""End of the name of a class of transformers -> the task that a suite has for it."""


@dataclass(frozen=True)
class SuiteDraft:
    """Sections of a suite, from a training that exists."""

    origin: str
    """What the training comes from, for people."""
    sections: Mapping[str, Any]
    own: PluginChoice | None
    """Strategy of the training; None: no suite has it."""
    left_out: tuple[str, ...]
    """Sentences on what the suite does not have of it."""
    data: Any = "synthetic"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a dataset of the user's own, if the suite gets one."""
    engine: str = ""
    """Framework that takes the steps of the training, to be priced; empty: none."""

    def render(self, file: str) -> str:
        """The suite as YAML, to be stored as *file*."""
        import jinja2

        template = jinja2.Template(
            _TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, undefined=jinja2.StrictUndefined
        )
        others = [each for each in _ALTERNATIVES if not (self.own and _is_same(each, self.own))]
        wrap = functools.partial(textwrap.wrap, width=106, subsequent_indent="  ")
        text: str = template.render(
            file=file,
            origin=textwrap.wrap(f"Taken from {self.origin}. The suite does not have:", 108),
            left_out=[line for each in self.left_out for line in wrap(f"- {each}")],
            data=json.dumps(self.data),
            sections={key: json.dumps(value) for key, value in self.sections.items()},
            own=json.dumps({self.own.name: {**self.own.options, LABEL_OPTION: OWN_LABEL}})
            if self.own
            else "",
            others=[json.dumps(_entry(each)) for each in others],
            include=json.dumps({"strategy": OWN_LABEL, "engine": self.engine}) if self.engine else "",
            warmup=self._warmup,
        )
        return text

    @property
    def _warmup(self) -> int:
        """Steps that settle, and use up what workers of a loader have made ahead."""
        loader = LoaderConfig(**self.sections.get("loader", {}))
        return max(_LEAST_WARMUP, loader.settling_steps(1))


def _is_same(one: PluginChoice, other: PluginChoice) -> bool:
    """True if both are the same strategy, once their defaults are filled in."""
    checker = PluginChecker()
    first, second = (checker.check("strategies", each, ())[0] for each in (one, other))
    return bool(first and second and first.choice == second.choice)


def _entry(strategy: PluginChoice) -> Any:
    return {strategy.name: dict(strategy.options)} if strategy.options else strategy.name


def label_options(row: RowResult) -> dict[str, Any]:
    """Options of a dataset that label each token of *row* with the next, if they are not labelled so."""
    return {"shift_labels": True} if row.shift_labels else {}


def transformers_task(name: str) -> str | None:
    """Task of a suite for the class *name* of transformers; None: there is none."""
    return next((task for end, task in _TASKS.items() if name.endswith(end)), None)


def named_workload(model: str, shape: Mapping[str, Any] | None, tokens: int | None = None) -> dict[str, Any]:
    """Section ``workload`` for the *model* of an answer.

    Args:
        model: Preset of the transformer, or ``package.module:callable``.
        shape: Of a sample, as ``complete_shape`` takes it; None: not known.
        tokens: Tokens of a sample; None: not known.

    Raises:
        UsageError: there is no such preset.
    """
    known = {**complete_shape(shape), **({"length": tokens} if tokens else {})}
    if is_user_callable(model):
        return {"user": {"model": model, **known}}
    if problem := model_problem(model):
        raise UsageError(f"--model = {model!r}: {problem}")
    return {"transformer": {"preset": model, "seq_len": known["length"]}}
