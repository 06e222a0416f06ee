"""Runs the trials of a plan one after another; every record is on the disk before the next begins."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from distbench.plan import Plan, Task
from distbench.record import Status
from distbench.run.bench import Bench
from distbench.run.observer import Observer, Pace
from distbench.run.stop import StopRequest
from distbench.spec import Suite
from distbench.store import Run, RunInfo


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    interrupted: bool
    """Stopped by Ctrl-C or SIGTERM; ``--resume`` goes on."""


def execute(run: Run, info: RunInfo, suite: Suite, plan: Plan, observer: Observer) -> Outcome:
    """Run what is missing of *plan* in the folder of *run*.

    Raises:
        InfrastructureError: the disk is full; what was stored is whole.
        KeyboardInterrupt: a second Ctrl-C; no process of the run is left.
    """
    stop = StopRequest()
    with stop.listening():
        with Bench.opened(run, suite, observer, stop) as bench:
            _run(bench, plan, observer, stop)
        run.write_info(dataclasses.replace(info, state="interrupted" if stop.asked else "finished"))
    return Outcome(interrupted=stop.asked)


def _run(bench: Bench, plan: Plan, observer: Observer, stop: StopRequest) -> None:
    impossible = [Task(item.case, problem=item.problem) for item in plan.cases if item.problem]
    for task in _missing(bench, [*impossible, *plan.trials]):
        if task.problem:
            bench.refuse(task, task.problem)
    todo = _missing(bench, plan.trials)
    if todo:
        bench.prepare([case for task in todo for case in (task.case, *task.instead)])
    pace = Pace(todo)
    for done, task in enumerate(todo):
        if stop.asked:
            return
        observer.trial_started(task, done, len(todo), pace.remaining(done))
        began = time.monotonic()
        record = bench.make(task)
        pace.took(task, time.monotonic() - began)
        observer.trial_ended(record)


def _missing(bench: Bench, tasks: list[Task]) -> list[Task]:
    todo: list[Task] = []
    wanted: set[str] = set()
    for task in reversed(tasks):
        # a trial that was stopped is no result: it is run again; so is one whose file for a later
        # trial has ended with the run that was stopped
        if bench.status(task) in (None, Status.CANCELLED) or task.leaves in wanted:
            todo.append(task)
            wanted |= {task.reads} - {""}
    return todo[::-1]
