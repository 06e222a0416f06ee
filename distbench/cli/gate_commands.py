"""The commands of the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from distbench.cli.options import (
    REPORTS,
    Device,
    Json,
    Only,
    Out,
    Quiet,
    Set,
    Suite,
    WorldSizes,
    app,
    overrides,
)


@app.command()
def gate(
    suite: Suite,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="REF|ENV|RUN",
            help="Git revision, Python, or stored run.",
            show_default=False,
        ),
    ] = "",
    set_: Set = [],  # noqa: B006 - typer copies its defaults
    set_baseline: Annotated[
        list[str],
        typer.Option("--set-baseline", metavar="KEY=VALUE", help="The same, of the baseline only."),
    ] = [],  # noqa: B006
    env: Annotated[
        list[str], typer.Option("--env", metavar="NAME=VALUE", help="A variable of the candidate's ranks.")
    ] = [],  # noqa: B006
    env_baseline: Annotated[
        list[str],
        typer.Option("--env-baseline", metavar="NAME=VALUE", help="A variable of the baseline's ranks."),
    ] = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    world_sizes: WorldSizes = "",
    device: Device = "",
    max_pairs: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it
        typer.Option("--max-pairs", metavar="N", help="Pairs of trials of a case at most."),
    ] = None,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--minutes", metavar="N", help="Begin no pair after that time."),
    ] = None,
    inconclusive: Annotated[
        str, typer.Option("--inconclusive", metavar="WORD", help="tell (exit 3), pass (0) or fail (1).")
    ] = "tell",
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Both arms the same: nothing may be flagged.")
    ] = False,
    resume: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--resume", metavar="GATE", help="Go on with one that was stopped: its folder."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run; launch nothing.")
    ] = False,
    junit: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--junit", metavar="FILE", help="Also write JUnit XML."),
    ] = None,
    metrics: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--metrics", metavar="FILE", help="Also write OpenMetrics, as GitLab reads them."),
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also print annotations, and write the job's summary.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    out: Out = REPORTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Hold a candidate against a baseline, side by side."""
    from distbench.cli.gating import Outputs, Wanted, gate_suite

    rules = [
        f"gate.{key}={value}"
        for key, value in (("max_pairs", max_pairs), ("minutes", minutes))
        if value is not None
    ]
    wanted = Wanted(
        suite=suite,
        baseline=baseline,
        overrides=overrides([*set_, *rules], only, world_sizes, device),
        baseline_overrides=overrides([*set_, *rules, *set_baseline], only, world_sizes, device),
        set_baseline=tuple(set_baseline),
        variables=(tuple(env_baseline), tuple(env)),
        self_test=self_test,
    )
    outputs = Outputs(junit=junit, metrics=metrics, github=github, markdown=markdown, as_json=as_json)
    return gate_suite(
        wanted, outputs, inconclusive=inconclusive, dry_run=dry_run, resume=resume, out=out, quiet=quiet
    )


@app.command()
def calibrate(
    suite: Suite,
    pairs: Annotated[
        int, typer.Option("--pairs", metavar="N", help="Pairs of equal trials of each case.")
    ] = 10,
    set_: Set = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    world_sizes: WorldSizes = "",
    device: Device = "",
    out: Out = REPORTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Measure what this machine can resolve: A/A pairs."""
    from distbench.cli.calibrating import calibrate_suite

    rules = [f"gate.min_pairs={pairs}", f"gate.max_pairs={pairs}"]
    changed = overrides([*set_, *rules], only, world_sizes, device)
    return calibrate_suite(suite, changed, out=out, as_json=as_json, quiet=quiet)


@app.command()
def history(
    folders: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[FOLDER|BUCKET]...", help="Where runs lie, at any depth; s3://...", show_default=False
        ),
    ] = None,
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric", metavar="NAME", help="tokens_per_s by default; efficiency.", show_default=False
        ),
    ] = [],  # noqa: B006
    case: Annotated[
        list[str],
        typer.Option("--case", metavar="GLOB", help="Keep cases of this name or label.", show_default=False),
    ] = [],  # noqa: B006
    least: Annotated[
        str, typer.Option("--least", metavar="FRACTION", help="The smallest step to tell.")
    ] = "3%",
    html: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--html", metavar="FILE", help="Also write a page, with charts."),
    ] = None,
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Show metrics over runs, and where they changed."""
    from distbench.cli.recalling import recall_runs

    return recall_runs(
        folders or [], wanted=metric, globs=case, least=least, html=html, out=out, as_json=as_json
    )
