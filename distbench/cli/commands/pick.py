"""``distbench pick``: recommend a strategy, with the reasons."""

from __future__ import annotations

from typing import Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    JsonOption,
    OutOption,
    PriceOption,
    RunArgument,
    option,
)
from distbench.cli.output import apply_style, print_json, print_text, terminal_width, wrap_to_terminal


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
    from distbench.analysis.memory_ranges import memory_thresholds
    from distbench.api.pick import pick_case
    from distbench.api.stored_runs import damage_json
    from distbench.cli.stored_runs import apply_price, load_run
    from distbench.record import catalog
    from distbench.report.recommendation import candidate_table, recommendation_json

    run = apply_price(load_run(catalog.find_run(name, out)), price)
    picked = pick_case(
        run,
        goal=goal,
        memory=memory or None,
        devices=devices,
        precision=precision or None,
        work=work or None,
        avoid=avoid,
        within=within,
        margin=margin,
        prefix="--",
    )
    chosen, explanation = picked.selection, picked.recommendation
    if as_json:
        answer = recommendation_json(explanation, chosen, memory_thresholds(run.candidates, chosen))
        print_json({**answer, "damaged": damage_json(run)})
    else:
        headline = wrap_to_terminal(explanation.headline, 0).splitlines()
        print_text("\n".join(apply_style(line, "best" if chosen.pick else "doubtful") for line in headline))
        for reason in explanation.reasons:
            print_text(wrap_to_terminal(f"- {reason}", 2, 2))
        print_text("\n" + candidate_table(chosen).to_text(terminal_width(), apply_style))
    return 0 if chosen.pick else 1
