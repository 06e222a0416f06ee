"""Origin of a new suite: a training that exists, or answers."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.cli.configuration_suite import draft_from_file, has_unequal_rows
from distbench.cli.described_machine import find_described_machine
from distbench.cli.machine_suite import check_proposable, render_machine_suite
from distbench.cli.options import parse_counts, parse_option
from distbench.cli.output import print_note
from distbench.cli.script_suite import draft_from_run
from distbench.cli.suite_draft import SuiteDraft, label_options
from distbench.cli.suite_template import (
    SUITE_GOALS,
    UNKNOWN_SHAPE_ADVICE,
    SuiteAnswers,
    is_user_callable,
    model_problem,
    render_suite,
    user_data,
)
from distbench.cli.user_models import construct_models
from distbench.core.case import PluginChoice
from distbench.core.errors import SuiteError, UsageError, did_you_mean
from distbench.core.machine import Machine
from distbench.core.user_callables import callable_problem
from distbench.record import catalog
from distbench.record.run_folder import RUN_FILE, Run
from distbench.run.user_models import RowResult
from distbench.suite import parse_suite_text
from distbench.suite.foreign_files import foreign_file_problem
from distbench.suite.yaml_reader import read_suite_text
from distbench.system.files import infrastructure_errors, write_atomic
from distbench.system.machine import visible_gpu_count

DEFAULT_FILE = Path("suite.yaml")


@dataclass(frozen=True)
class SuiteOrigin:
    """A training that exists, or the answers from which a suite is written."""

    source: str = ""
    """Run of a measured script, or file of another framework; empty: the answers tell all."""
    model: str = ""
    """Preset of the transformer, or ``package.module:callable``; empty: *source* tells it."""
    data: str = ""
    """``package.module:callable`` of a dataset; empty: a source of distbench that suits the model."""
    devices: str = "auto"
    goal: str = "throughput"
    on: str = ""
    """GPUs that are not at hand, for which strategies are proposed; empty: a suite for any machine."""

    @property
    def options(self) -> list[tuple[str, str]]:
        """Options of ``distbench run`` that name it, with their values."""
        named = [("--from", self.source), ("--model", self.model), ("--data", self.data)]
        return [(option, value) for option, value in named if value]

    def suite_text(self, file: Path, out: Path) -> str:
        """Text of the suite, to be stored as *file*; prints what it does not have of the training.

        Args:
            out: Folder that holds the runs.

        Raises:
            UsageError: an answer is wrong, or no suite has such a training.
        """
        name = shlex.quote(str(file))
        text = self._draft(out).render(name) if self.source else self._first_suite(name)
        # the output is a suite, whatever the answers
        try:
            parse_suite_text(text, file=str(file))
        except SuiteError as error:
            if not self.source:
                raise
            why = f"--from: {self.source} can't be carried over, as no suite has this: {error}"
            raise UsageError(why) from error
        return text

    def _first_suite(self, name: str) -> str:
        if not self.on:
            return render_suite(self._answers(), name)
        check_proposable(self.model, self.goal, self.on)
        return render_machine_suite(self._answers(), self.on, described_gpus(self.on), name)

    def _draft(self, out: Path) -> SuiteDraft:
        file = Path(self.source)
        if file.is_file():
            shape, row = self._sample(lengths=bool(self.data) and has_unequal_rows(file))
            draft = draft_from_file(file, self.model, shape, row, has_data=bool(self.data))
        else:
            shape, _ = self._sample()
            draft = draft_from_run(self._run(out), self.model, shape, has_data=bool(self.data))
        for each in draft.left_out:
            print_note(f"left out: {each}")
        if not self.data:
            return draft
        return dataclasses.replace(draft, data=user_data(self.data, draft.data_options))

    def _run(self, out: Path) -> Run:
        """Run that *source* names, which is no file."""
        try:
            run = catalog.find_run(self.source, out)
        except UsageError as error:
            raise UsageError(f"--from: no such file, and as a run: {error}") from error
        if not (run.folder / RUN_FILE).exists():
            raise UsageError(
                f"--from: {self.source} is a folder without {RUN_FILE}; give a file such as ds_config.json, "
                "or the run of a measured script"
            )
        return run

    def _answers(self) -> SuiteAnswers:
        check_model(self.model)
        check_goal(self.goal)
        (goal,) = (goal for goal in SUITE_GOALS if goal == self.goal)
        device = "cuda" if visible_gpu_count() else "cpu"
        devices, (shape, row) = parse_devices(self.devices), self._sample()
        return SuiteAnswers(self.model, devices, goal, device, shape, self.data, label_options(row))

    def _sample(self, *, lengths: bool = False) -> tuple[Mapping[str, Any] | None, RowResult]:
        """Shape of a sample, from a row of the dataset and a forward pass of the model, and what rows tell.

        The shape is None if that was not tried.

        Args:
            lengths: Read all rows for their lengths.

        Raises:
            UsageError: one of them can't be imported, constructed or read.
        """
        if self.model:
            check_model(self.model)
        if self.data and (problem := callable_problem(self.data)):
            raise UsageError(f"--data = {self.data!r}: {problem}, which returns a dataset")
        own = [PluginChoice("user", {"model": self.model})] if is_user_callable(self.model) else []
        if not own and not self.data:
            return None, RowResult()
        found = construct_models(own, dataset=self.data, lengths=lengths)
        if not found.models and not found.row.shape and not found.row.problem:
            return None, found.row
        if found.row.problem:
            raise UsageError(f"--data: {found.row.problem}")
        shape, row = dict(found.row.shape), found.row
        # a file of a model of transformers has a task of its own
        if self.model and not own and shape.get("kind", "tokens") != "tokens":
            raise UsageError(
                f"--data: rows of {self.data} are {shape['kind']}, but the model takes tokens; add "
                "--model package.module:callable, which returns one that takes them"
            )
        for each in found.models:
            if each.problem:
                raise UsageError(f"--model: {each.problem}")
            if not each.shape:
                print_note(f"{self.model}: {UNKNOWN_SHAPE_ADVICE}")
                # a loss function gets rows as they are
                row = dataclasses.replace(row, shift_labels=False)
            shape |= each.shape
        return shape, row


def described_gpus(on: str) -> Machine:
    """The machine that *on* describes.

    Raises:
        UsageError: it describes none.
    """
    machine = find_described_machine(on, None, None)
    if machine is None:
        raise UsageError(
            f"--on = {on!r}: a launcher, whose GPUs are not known here; name them, such as "
            "--on h100-sxm:8x8, or a machine.yaml"
        )
    return machine


def check_folder(file: Path) -> None:
    """Raise UsageError unless the folder of *file* exists."""
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{file}: the folder {file.parent} does not exist; create it first")


def write_suite(file: Path, text: str) -> None:
    """Write *text* as *file*.

    Raises:
        InfrastructureError: that is not possible.
    """
    with infrastructure_errors(file):
        write_atomic(file, text)


def stored_suite(origin: SuiteOrigin, file: Path, out: Path) -> Path:
    """Return *file*, which holds the suite of *origin*: it is written unless it is there already.

    Raises:
        UsageError: as of ``suite_text``; *file* is something else, which stays as it is.
    """
    check_folder(file)
    text = origin.suite_text(file, out)
    if not file.exists():
        write_suite(file, text)
        print_note(f"{file}: written; the run is of this suite")
    elif (existing := read_suite_text(file)) != text:
        options = shlex.join([word for each in origin.options for word in each])
        if problem := foreign_file_problem(existing):
            raise UsageError(f"{file}: {problem}")
        raise UsageError(
            f"{file}: already exists, and is not the suite of {options}; run it as it is with "
            f"distbench run {shlex.quote(str(file))}, or name a new file: distbench run FILE {options}"
        )
    return file


def check_model(model: str) -> None:
    """Raise UsageError unless *model* can be one."""
    if problem := model_problem(model):
        raise UsageError(f"--model = {model!r}: {problem}")


def check_goal(goal: str) -> None:
    """Raise UsageError unless *goal* is one."""
    if goal not in SUITE_GOALS:
        raise UsageError(f"--goal = {goal!r}: {did_you_mean(goal, SUITE_GOALS)}")


def parse_devices(text: str) -> tuple[int, ...]:
    """Numbers of devices in *text*, in order; none: all of them.

    Raises:
        UsageError: there is something else.
    """
    sizes = parse_option("--devices", "" if text == "auto" else text, parse_counts) or []
    if 0 in sizes:
        raise UsageError(f"--devices = {text!r}: expected numbers from 1 on, such as 1,2,4, or auto")
    return tuple(sorted(set(sizes)))
