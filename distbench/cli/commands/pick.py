"""``distbench pick``: a recommended strategy, with the reasons."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Annotated

from distbench.analysis import choice, recommendation
from distbench.cli.colour import paint
from distbench.cli.options import REPORTS, Json, Out, Price, RunName, check_word, option, parsed
from distbench.cli.output import say, say_json, width, wrapped
from distbench.cli.readers import reads_runs
from distbench.cli.reading import analysed, damage_json, priced
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.units import parse_bytes, parse_fraction
from distbench.record import catalog
from distbench.report import choice_view


@reads_runs
def pick(
    name: RunName,
    goal: Annotated[
        str, option("--goal", "GOAL", "throughput, memory or tokens-per-joule.", has_default=True)
    ] = "throughput",
    memory: Annotated[str, option("--memory", "SIZE", "Memory per device: 24GiB.")] = "",
    devices: Annotated[
        int | None, option("--devices", "N", "Number of devices (default: the largest measured).")
    ] = None,
    precision: Annotated[str, option("--precision", "DTYPE", "fp32, bf16, ...")] = "",
    work: Annotated[str, option("--work", "WORK", "Which workload, if the run has several.")] = "",
    avoid: Annotated[list[str], option("--avoid", "GLOB", "Exclude strategies matching GLOB.")] = [],
    within: Annotated[
        str,
        option(
            "--within",
            "PART",
            "With --goal memory: how much slower than the fastest is acceptable.",
            has_default=True,
        ),
    ] = "10%",
    margin: Annotated[
        str,
        option(
            "--margin",
            "PART",
            "How far behind the best of a tie the simplest may be, by cautious estimate.",
            has_default=True,
        ),
    ] = "2%",
    price: Price = "",
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Recommend a strategy and say why."""
    check_word("--goal", goal, choice.GOALS)
    budget = parsed("--memory", memory, parse_bytes)
    slower = parsed("--within", within, parse_fraction)
    behind = parsed("--margin", margin, parse_fraction)
    run = priced(analysed(catalog.find(name, out)), price)
    every = run.candidates
    wish = choice.Wish(
        goal=goal,  # type: ignore[arg-type]  # checked above
        memory=budget,
        devices=devices,
        precision=precision or None,
        work=work or None,
        avoid=tuple(avoid),
        within=choice.WITHIN if slower is None else slower,
        margin=choice.MARGIN if behind is None else behind,
    )
    for key in ("devices", "precision", "work"):
        _known(f"--{key}", getattr(wish, key), sorted({getattr(candidate, key) for candidate in every}))
    for glob in avoid:
        labels = sorted({candidate.label for candidate in every})
        if not fnmatch.filter(labels, glob):
            raise UsageError(
                f"--avoid = {glob!r}: matches no strategy of this run; {did_you_mean(glob, labels)}"
            )
    chosen, explanation = choice.choose(every, wish), recommendation.answer(run, wish)
    if as_json:
        said = choice_view.to_json(explanation, chosen, choice.turns(every, chosen))
        say_json({**said, "damaged": damage_json(run)})
    else:
        headline = wrapped(explanation.headline, 0).splitlines()
        say("\n".join(paint(line, "best" if chosen.pick else "doubtful") for line in headline))
        for reason in explanation.reasons:
            say(wrapped(f"- {reason}", 2, 2))
        say("\n" + choice_view.sheet(chosen).as_text(width(), paint))
    return 0 if chosen.pick else 1


def _known(option: str, value: object, known: Sequence[object]) -> None:
    """Raise UsageError if *value* is given and not one of the *known* ones."""
    if value is not None and value not in known:
        available = ", ".join(map(str, known)) or "none"
        raise UsageError(f"{option} = {value!r}: no case of this run has it; available: {available}")
