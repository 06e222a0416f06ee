"""``distbench pick``: a recommended strategy, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from distbench.cli.options import REPORTS, Json, Out, RunName
from distbench.cli.output import say, say_json, width, wrapped
from distbench.errors import UsageError, did_you_mean

T = TypeVar("T")


def pick(
    name: RunName,
    goal: Annotated[
        str, typer.Option("--goal", metavar="GOAL", help="throughput, memory or tokens-per-joule.")
    ] = "throughput",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory per device: 24GiB.", show_default=False)
    ] = "",
    devices: Annotated[
        int | None,
        typer.Option("--devices", metavar="N", help="Number of devices (default: the largest measured)."),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="DTYPE", help="fp32, bf16, ...", show_default=False)
    ] = "",
    work: Annotated[
        str,
        typer.Option(
            "--work", metavar="WORK", help="Which workload, if the run has several.", show_default=False
        ),
    ] = "",
    avoid: Annotated[
        list[str],
        typer.Option("--avoid", metavar="GLOB", help="Exclude strategies matching GLOB.", show_default=False),
    ] = [],
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="PART",
            help="With --goal memory: how much slower than the fastest is acceptable.",
        ),
    ] = "10%",
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Recommend a strategy and say why."""
    from distbench.analysis import answer, choice
    from distbench.analysis.run import AnalysedRun
    from distbench.record import runs
    from distbench.report import choice_view
    from distbench.units import parse_bytes, parse_fraction

    if goal not in choice.GOALS:
        raise UsageError(f"--goal = {goal!r}: {did_you_mean(goal, choice.GOALS)}")
    budget = _parsed("--memory", memory, parse_bytes)
    slower = _parsed("--within", within, parse_fraction)
    run = AnalysedRun.read(runs.find(name, out))
    every = run.candidates
    _known("--devices", devices, sorted({candidate.devices for candidate in every}))
    _known("--precision", precision or None, sorted({candidate.precision for candidate in every}))
    _known("--work", work or None, sorted({candidate.work for candidate in every}))
    wish = choice.Wish(
        goal=goal,
        memory=budget,
        devices=devices,
        precision=precision or None,
        work=work or None,
        avoid=tuple(avoid),
        within=choice.WITHIN if slower is None else slower,
    )
    chosen, explanation = choice.choose(every, wish), answer.answer(run, wish)
    if as_json:
        say_json(choice_view.to_json(explanation, chosen, choice.turns(every, chosen)))
    else:
        say(wrapped(explanation.headline, 0))
        for reason in explanation.reasons:
            say(wrapped(f"- {reason}", 2, 2))
        say("\n" + choice_view.sheet(chosen).as_text(width()))
    return 0 if chosen.pick else 1


def _parsed(option: str, text: str, parse: Callable[[str], T]) -> T | None:
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option} = {text!r}: {error}") from None


def _known(option: str, value: object, known: Sequence[object]) -> None:
    """Raise UsageError if *value* is given and not one of the *known* ones."""
    if value is not None and value not in known:
        available = ", ".join(map(str, known)) or "none"
        raise UsageError(f"{option} = {value!r}: no case of this run has it; available: {available}")
