"""``distbench pick``: recommend a strategy, with the reasons."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    JsonOption,
    OutOption,
    PriceOption,
    RunArgument,
    check_choice,
    option,
    parse_option,
)
from distbench.cli.output import apply_style, print_json, print_text, terminal_width, wrap_to_terminal
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.units import parse_bytes, parse_fraction


@reads_runs
def pick(
    name: RunArgument,
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
            "With --goal memory: accepted slowdown relative to the fastest case.",
            has_default=True,
        ),
    ] = "10%",
    margin: Annotated[
        str,
        option(
            "--margin",
            "PART",
            "Of tied cases, choose the simplest within this margin of the best, by cautious estimate.",
            has_default=True,
        ),
    ] = "2%",
    price: PriceOption = "",
    out: OutOption = DEFAULT_RUNS_FOLDER,
    as_json: JsonOption = False,
) -> int:
    """Recommend a strategy and say why."""
    from distbench.analysis import choice
    from distbench.analysis.wording.recommendation import recommend
    from distbench.cli.stored_runs import apply_price, damage_json, load_run
    from distbench.record import catalog
    from distbench.report.recommendation import candidate_table, recommendation_json

    check_choice("--goal", goal, choice.GOALS)
    budget = parse_option("--memory", memory, parse_bytes)
    slower = parse_option("--within", within, parse_fraction)
    behind = parse_option("--margin", margin, parse_fraction)
    run = apply_price(load_run(catalog.find_run(name, out)), price)
    every = run.candidates
    wish = choice.Requirements(
        goal=goal,  # type: ignore[arg-type]  # checked above
        memory=budget,
        devices=devices,
        precision=precision or None,
        work=work or None,
        avoid=tuple(avoid),
        within=choice.DEFAULT_MAX_SLOWDOWN if slower is None else slower,
        margin=choice.DEFAULT_TIE_MARGIN if behind is None else behind,
    )
    for key in ("devices", "precision", "work"):
        _check_available(
            f"--{key}", getattr(wish, key), sorted({getattr(candidate, key) for candidate in every})
        )
    for glob in avoid:
        labels = sorted({candidate.label for candidate in every})
        if not fnmatch.filter(labels, glob):
            raise UsageError(
                f"--avoid = {glob!r}: matches no strategy of this run; {did_you_mean(glob, labels)}"
            )
    chosen, explanation = choice.select_case(every, wish), recommend(run, wish)
    if as_json:
        said = recommendation_json(explanation, chosen, choice.memory_thresholds(every, chosen))
        print_json({**said, "damaged": damage_json(run)})
    else:
        headline = wrap_to_terminal(explanation.headline, 0).splitlines()
        print_text("\n".join(apply_style(line, "best" if chosen.pick else "doubtful") for line in headline))
        for reason in explanation.reasons:
            print_text(wrap_to_terminal(f"- {reason}", 2, 2))
        print_text("\n" + candidate_table(chosen).to_text(terminal_width(), apply_style))
    return 0 if chosen.pick else 1


def _check_available(option: str, value: object, known: Sequence[object]) -> None:
    """Raise UsageError if *value* is given and not one of the *known* ones."""
    if value is not None and value not in known:
        available = ", ".join(map(str, known)) or "none"
        raise UsageError(f"{option} = {value!r}: no case of this run has it; available: {available}")
