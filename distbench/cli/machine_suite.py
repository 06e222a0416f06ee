"""Render a suite for nodes with GPUs that are not at hand: what may be best there, and fits."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench.cli.machine_assessments import (
    CaseAssessment,
    assess_cases,
    assessments_of,
    without_needless_recomputation,
)
from distbench.cli.machine_proposals import (
    MICRO_BATCHES,
    Proposal,
    global_batch,
    has_usual_samples,
    propose,
    samples_per_device,
)
from distbench.cli.suite_template import GOAL_QUESTIONS, SuiteAnswers, is_user_callable, presets, user_data
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.errors import UsageError
from distbench.core.grouping import group_by
from distbench.core.machine import Machine
from distbench.core.units import format_bytes, format_count, format_gb_per_s, join_words
from distbench.plan.cells import auto_world_sizes
from distbench.prediction.hardware import hardware_of
from distbench.workloads.transformer import Transformer

_TEMPLATE = Path(__file__).with_name("machine_suite.yaml.jinja")
_GOALS = ("throughput", "memory")
_LENGTH = 4096
"""Tokens of a sample if no dataset decides it."""
_LEAST_BF16 = 8.0
"""Compute capability from which on GPUs multiply in bf16."""
_WIDTH = 106
_MICRO_BATCH = "batch.micro_batch_size"
_FILTERED = {
    "micro_batch": _MICRO_BATCH,
    "world_size": "world_size",
    "recomputation": "activation_checkpointing",
}
"""Fields of a judgement by which an exclude selects cases, with its keys for them."""


def render_machine_suite(answers: SuiteAnswers, on: str, machine: Machine, file: str) -> str:
    """Render a suite for *answers* on *machine*, which is called *on*, to be stored as *file*.

    Raises:
        UsageError: *machine* lacks these devices, or nothing fits there.
    """
    sizes = _world_sizes(answers.devices, on, machine)
    model = resolved_model(answers.model, machine)
    decoder = model.decoder_dimensions
    proposals = list(propose(machine, math.gcd(decoder.heads, decoder.kv_heads), sizes, answers.goal))
    draft = _Draft(replace(answers, model=model.preset), on, machine, file, sizes)
    judged = [*assess_cases(draft.render(proposals, []), machine)]
    if answers.goal == "throughput":
        judged = [*without_needless_recomputation(judged)]
    fitting = [each for each in proposals if not all(case.refusal for case in assessments_of(each, judged))]
    if not fitting:
        peaks = [case.peak for case in judged if case.peak]
        least = f"; the least that one of them needs is {format_bytes(min(peaks))} on a GPU" if peaks else ""
        raise UsageError(
            f"--on = {on!r}: no strategy that distbench proposes fits {model.preset} there{least}; "
            "name a smaller preset with --model, or a larger machine"
        )
    return draft.render(fitting, judged, [each for each in proposals if each not in fitting])


def resolved_model(preset: str, machine: Machine) -> Transformer:
    """The transformer of *preset*; ``auto``: the one that suits *machine*."""
    workload = registry.create_plugin("workloads", PluginChoice("transformer", {"preset": preset}))
    model: Transformer = workload.resolved_for(machine)
    return model


def check_proposable(model: str, goal: str, on: str) -> None:
    """Raise UsageError unless there are proposals for *model* and *goal*, for the GPUs called *on*."""
    if is_user_callable(model):
        raise UsageError(
            f"--model = {model!r}: --on proposes strategies by predictions, which need a model of known "
            f"dimensions; use a preset of the transformer ({', '.join(presets())}), or leave out --on"
        )
    if goal not in _GOALS:
        raise UsageError(
            f"--goal = {goal!r}: --on = {on!r} proposes strategies for {join_words(_GOALS)}; use one of "
            "them, or leave out --on"
        )


def _world_sizes(devices: Sequence[int], on: str, machine: Machine) -> list[int]:
    """Numbers of *devices*; without any, those of whole nodes.

    They are without the number of all nodes, if it makes the batch that all share much larger.
    """
    per_node = machine.devices_per_node
    for size in devices:
        if size > machine.devices:
            raise UsageError(
                f"--devices: {size} are more than the {machine.devices} of --on = {on!r}; use at most these"
            )
        if size > per_node and size % per_node:
            raise UsageError(
                f"--devices: {size} are more than a node of --on = {on!r}, and no whole nodes; use a "
                f"multiple of {per_node}"
            )
    if devices:
        return list(devices)
    whole = [size for size in auto_world_sizes(machine.devices, machine.nodes) if size >= per_node]
    return whole if has_usual_samples(whole) else whole[:-1]


@dataclass(frozen=True)
class _Draft:
    """All of a suite but its proposals."""

    answers: SuiteAnswers
    on: str
    machine: Machine
    file: str
    sizes: Sequence[int]

    def render(
        self,
        proposals: Sequence[Proposal],
        judged: Sequence[CaseAssessment],
        left_out: Sequence[Proposal] = (),
    ) -> str:
        """Text of the suite with *proposals*, without those of their cases that *judged* refuses.

        *left_out*: proposals whose every case is refused.
        """
        import jinja2

        template = jinja2.Template(
            _TEMPLATE.read_text(encoding="utf-8"),
            trim_blocks=True,
            keep_trailing_newline=True,
            undefined=jinja2.StrictUndefined,
        )
        of_all = _unknown_of_all(proposals, judged)
        text: str = template.render(
            **self._training(),
            **self._grid(proposals, judged),
            intro=textwrap.wrap(" ".join([self._intro(), *_unknown_text(of_all)]), _WIDTH),
            proposals=[
                {"comment": _comment(each, judged, of_all), "text": json.dumps(_entry(each))}
                for each in proposals
            ],
            left_out=[line for each in left_out for line in _left_out_lines(each, judged)],
        )
        return text

    def _training(self) -> dict[str, Any]:
        """Fields of the template that do not depend on proposals."""
        answers = self.answers
        return {
            "question": GOAL_QUESTIONS[answers.goal],
            "file": self.file,
            "on": self.on,
            "model": answers.model,
            "presets": presets(),
            "length": (answers.shape or {}).get("length", _LENGTH),
            "data": json.dumps(user_data(answers.data, answers.data_options)) if answers.data else "",
            "samples": global_batch(self.sizes),
            "micro_batches": list(MICRO_BATCHES),
            "precision": self._precision(),
            "sizes": list(self.sizes),
            "sizes_comment": textwrap.wrap(self._sizes_text(), _WIDTH),
        }

    def _grid(self, proposals: Sequence[Proposal], judged: Sequence[CaseAssessment]) -> dict[str, Any]:
        """Fields of the template that add cases of *proposals*, and remove those that are refused."""
        refused = [each for one in proposals for each in self._refused(one, judged)]
        return {
            "include": [json.dumps(self._include(each)) for each in proposals if each.micro_batch],
            "exclude": [*self._misplaced(proposals), *refused],
        }

    def _sizes_text(self) -> str:
        """Sentence on world sizes whose common batch is unusually large; empty: it is not."""
        sizes, most = self.sizes, self.machine.devices
        if not has_usual_samples(sizes):
            return (
                f"The batch is a multiple of all of them: {samples_per_device(sizes)} samples on each of "
                f"{max(sizes):,} GPUs. Numbers that divide each other need fewer."
            )
        if not self.answers.devices and most not in sizes:
            each = samples_per_device([*sizes, most])
            return (
                f"Without all {most:,} GPUs: with a batch that these numbers share with {most:,}, each GPU "
                f"would have {each} samples. init --devices {most} writes a suite for them."
            )
        return ""

    def _intro(self) -> str:
        machine = self.machine
        gpus = format_count(machine.devices_per_node, f"{machine.gpu_type} GPU")
        each = " each" if machine.devices > 1 else ""
        memory = (
            f" with {format_bytes(machine.device_memory)} of memory{each}" if machine.device_memory else ""
        )
        return f"Proposed for {format_count(machine.nodes, 'node')} of {gpus}{memory}.{_links_text(machine)}"

    def _precision(self) -> str:
        capability = self.machine.compute_capability
        return "bf16" if capability is None or capability >= _LEAST_BF16 else "fp16"

    def _nodes(self) -> list[int]:
        """World sizes of several nodes."""
        return [size for size in self.sizes if size > self.machine.devices_per_node]

    def _include(self, pipeline: Proposal) -> dict[str, Any]:
        return {
            "strategy": pipeline.label,
            "world_size": self._nodes(),
            _MICRO_BATCH: pipeline.micro_batch,
        }

    def _misplaced(self, proposals: Sequence[Proposal]) -> Iterator[dict[str, Any]]:
        """Yield what removes cases of the grid that *proposals* are not meant for."""
        small = [size for size in self.sizes if size <= self.machine.devices_per_node]
        if any(each.micro_batch for each in proposals):
            filtered = {"strategy": "pp*", _MICRO_BATCH: list(MICRO_BATCHES)}
            yield {"comment": ["the cases of pipelines are in include"], "text": json.dumps(filtered)}
        for each in proposals:
            if each.spans_nodes and not each.micro_batch and small:
                filtered = {"strategy": each.label, "world_size": small}
                yield {"comment": ["it is for several nodes"], "text": json.dumps(filtered)}

    def _refused(self, proposal: Proposal, judged: Sequence[CaseAssessment]) -> Iterator[dict[str, Any]]:
        """Yield what removes cases of *proposal* that *judged* refuses, each with the reason."""
        cases_of_proposal = assessments_of(proposal, judged)
        for cases in _blocks([case for case in cases_of_proposal if case.refusal]):
            filtered: dict[str, Any] = {"strategy": proposal.label}
            for name, key in _FILTERED.items():
                values = sorted({getattr(case, name) for case in cases})
                if values != sorted({getattr(case, name) for case in cases_of_proposal}):
                    filtered[key] = values[0] if len(values) == 1 else values
            yield {"comment": textwrap.wrap(_reason_text(cases), _WIDTH), "text": json.dumps(filtered)}


def _links_text(machine: Machine) -> str:
    """Sentence on the links that *machine* has; empty: none, or unknown."""
    hardware = hardware_of(machine)
    if isinstance(hardware, str) or machine.devices == 1:
        return ""
    inside = hardware.inside if hardware.gpus_per_node > 1 else None
    between = hardware.between if machine.nodes > 1 else None
    rates = ((inside, "inside a node"), (between, "between nodes"))
    known = [f"{format_gb_per_s(rate)} GB/s {where}" for rate, where in rates if rate]
    return f" A GPU sends {' and '.join(known)}." if known else ""


def _blocks(cases: Sequence[CaseAssessment]) -> list[list[CaseAssessment]]:
    """*cases* in blocks that an exclude removes: with one reason, and every combination of their values."""
    blocks = [[case] for case in cases]
    for joined in _FILTERED:
        others = [name for name in _FILTERED if name != joined]

        def fixed(block: list[CaseAssessment], others: list[str] = others) -> Hashable:
            values = frozenset(tuple(getattr(case, name) for name in others) for case in block)
            return block[0].refusal, values

        blocks = [[case for block in group for case in block] for group in group_by(blocks, fixed).values()]
    return blocks


def _entry(proposal: Proposal) -> Any:
    return {proposal.name: proposal.options} if proposal.options else proposal.name


def _unknown_of(proposal: Proposal, judged: Sequence[CaseAssessment]) -> list[str]:
    """Reasons why the memory of *proposal* is unknown."""
    return [*dict.fromkeys(case.unknown for case in assessments_of(proposal, judged) if case.unknown)]


def _unknown_of_all(proposals: Sequence[Proposal], judged: Sequence[CaseAssessment]) -> list[str]:
    """Those reasons, if all *proposals* have the same."""
    first, *others = [_unknown_of(each, judged) for each in proposals]
    return first if all(each == first for each in others) else []


def _unknown_text(reasons: Sequence[str]) -> list[str]:
    return [f"Memory unknown: {why}." for why in reasons]


def _comment(proposal: Proposal, judged: Sequence[CaseAssessment], known: Sequence[str]) -> list[str]:
    """Lines on *proposal*: the reason for it, and why its memory is unknown, besides what is *known*."""
    unknown = [] if known else _unknown_of(proposal, judged)
    text = f"{proposal.label}: {proposal.reason}."
    return textwrap.wrap(" ".join([text, *_unknown_text(unknown)]), _WIDTH)


def _left_out_lines(proposal: Proposal, judged: Sequence[CaseAssessment]) -> list[str]:
    cases = assessments_of(proposal, judged)
    # on the most devices least speaks against it
    most_devices = max(case.world_size for case in cases)
    reasons = group_by((case for case in cases if case.world_size == most_devices), lambda case: case.refusal)
    text = "; ".join(map(_reason_text, reasons.values()))
    return textwrap.wrap(f"- {proposal.label}: {text}", _WIDTH, subsequent_indent="  ")


def _reason_text(cases: Sequence[CaseAssessment]) -> str:
    """The one reason against *cases*, with the bytes that they need."""
    peaks = sorted(case.peak for case in cases if case.peak is not None)
    if not peaks:
        return cases[0].refusal
    ends = dict.fromkeys([format_bytes(peaks[0]), format_bytes(peaks[-1])])
    return f"{' to '.join(ends)} of {cases[0].refusal}"
