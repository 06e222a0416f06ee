"""``distbench pick``: what to train with, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from distbench.cli.printing import say, say_json, width, wrapped
from distbench.cli.showing import find_run
from distbench.errors import UsageError, did_you_mean

T = TypeVar("T")


def pick_case(
    name: str,
    *,
    goal: str,
    memory: str,
    devices: int | None,
    precision: str,
    work: str,
    avoid: list[str],
    within: str,
    out: Path,
    as_json: bool,
) -> int:
    """Print what to take of a run and why; return 1 if there is nothing to take.

    Raises:
        UsageError: there is no such run, or no case in it that is as was asked for.
    """
    from distbench.analysis import answer, candidates, choice
    from distbench.analysis.summary import summarise
    from distbench.report import choice_view
    from distbench.report.tables import as_text
    from distbench.units import parse_bytes, parse_fraction

    if goal not in choice.GOALS:
        raise UsageError(f"--goal = {goal!r}: {did_you_mean(goal, choice.GOALS)}")
    budget = _parsed("--memory", memory, parse_bytes)
    slower = _parsed("--within", within, parse_fraction)
    run = find_run(name, out)
    cases = summarise(run.info(), list(run.records()))
    every = candidates.candidates(cases)
    _known("--devices", devices, sorted({one.devices for one in every}))
    _known("--precision", precision or None, sorted({one.precision for one in every}))
    _known("--work", work or None, sorted({one.work for one in every}))
    wish = choice.Wish(
        goal=goal,
        memory=budget,
        devices=devices,
        precision=precision or None,
        work=work or None,
        avoid=tuple(avoid),
        within=choice.WITHIN if slower is None else slower,
    )
    made, told = choice.choose(every, wish), answer.answer(cases, wish, every)
    if as_json:
        say_json(choice_view.to_json(told, made, choice.turns(every, made)))
    else:
        say(wrapped(told.headline, 0))
        for reason in told.reasons:
            say(wrapped(f"- {reason}", 2, 2))
        say("\n" + as_text(choice_view.table(made), width()))
    return 0 if made.pick else 1


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T | None:
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option} = {text!r}: {error}") from None


def _known(option: str, value: object, known: Sequence[object]) -> None:
    """Raise UsageError if *value* is asked for and none of the *known* ones."""
    if value is not None and value not in known:
        there = ", ".join(str(one) for one in known) or "none"
        raise UsageError(f"{option} = {value!r}: no case of this run has it; there are: {there}")
