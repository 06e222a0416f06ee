"""The commands. Each imports what it needs when it runs: ``--help`` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from distbench import __version__
from distbench.cli.options import (
    REPORTS,
    Check,
    Device,
    Json,
    MaybeSuite,
    Only,
    Out,
    Quiet,
    RunName,
    Set,
    Suite,
    WorldSizes,
    app,
    overrides,
)
from distbench.cli.printing import say
from distbench.errors import UsageError


def _print_version(asked: bool) -> None:
    if asked:
        say(f"distbench {__version__}")
        raise typer.Exit


@app.callback()
def _distbench(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    suite: MaybeSuite = None,
    out: Out = REPORTS,
    set_: Set = [],  # noqa: B006 - typer copies its defaults
    only: Only = [],  # noqa: B006
    world_sizes: WorldSizes = "",
    device: Device = "",
    resume: Annotated[
        str, typer.Option("--resume", metavar="RUN", help="Go on with what a run lacks.", show_default=False)
    ] = "",
    keep_traces: Annotated[
        bool, typer.Option("--keep-traces", help="Keep the profiler's trace of every trial.")
    ] = False,
    strict_parity: Annotated[
        bool, typer.Option("--strict-parity", help="Fail if a case did other work than its reference.")
    ] = False,
    check: Check = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a suite; leaves records and a report."""
    from distbench.cli.running import resume_run, run_suite

    changes = [*set_, *(["measure.keep_traces=true"] if keep_traces else [])]
    changed = overrides(changes, only, world_sizes, device, check=check)
    how = {"as_json": as_json, "quiet": quiet, "strict_parity": strict_parity}
    if not resume:
        if suite is None:
            raise UsageError("run: which suite? distbench run SUITE, or distbench run --resume RUN")
        return run_suite(suite, changed, out=out, **how)
    others = [change for change in changes if not (check and change.startswith("check."))]
    if suite is not None or any((others, only, world_sizes, device)):
        raise UsageError(
            "--resume: a run goes on as it was begun; it takes no suite and changes none; --check (and "
            "--set check.KEY=VALUE with it) adds what was not asked for then"
        )
    return resume_run(resume, changed if check else None, out=out, **how)


@app.command()
def plan(
    suite: Suite,
    out: Out = REPORTS,
    set_: Set = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    world_sizes: WorldSizes = "",
    device: Device = "",
    check: Check = False,
    as_json: Json = False,
) -> int:
    """Show what a run would do; launches nothing."""
    from distbench.cli.planning import show_plan

    changed = overrides(set_, only, world_sizes, device, check=check)
    return show_plan(suite, changed, out=out, as_json=as_json)


@app.command()
def prepare(
    suite: Suite,
    set_: Set = [],  # noqa: B006
    only: Only = [],  # noqa: B006
    world_sizes: WorldSizes = "",
    device: Device = "",
    quiet: Quiet = False,
) -> int:
    """Build what a suite needs once (C++ ops)."""
    from distbench.cli.running import prepare_suite

    return prepare_suite(suite, overrides(set_, only, world_sizes, device), quiet=quiet)


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="strategies, workloads, data, metrics or launchers.")
    ] = "",
    as_json: Json = False,
) -> int:
    """List plug-ins with their options and docs."""
    from distbench.cli.listing import list_plugins

    return list_plugins(kind, as_json=as_json)


@app.command()
def show(
    name: RunName,
    out: Out = REPORTS,
    view: Annotated[
        str, typer.Option("--view", metavar="VIEW", help="One part in detail.", show_default=False)
    ] = "",
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    as_json: Json = False,
) -> int:
    """Print the table of a run again."""
    from distbench.cli.showing import show_markdown, show_run, show_view

    if sum((bool(view), markdown, as_json)) > 1:
        raise UsageError("show: one of --view, --md and --json at a time")
    if markdown:
        return show_markdown(name, out=out)
    return show_view(name, view, out=out) if view else show_run(name, out=out, as_json=as_json)


@app.command()
def report(
    name: RunName,
    out: Out = REPORTS,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    png: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Option("--png", metavar="DIR", help="Also write each chart as a PNG file."),
    ] = None,
) -> int:
    """Write the report of a run again."""
    from distbench.cli.showing import write_report

    return write_report(name, png=png, out=out, open_=open_)


@app.command()
def pick(
    name: RunName,
    goal: Annotated[
        str, typer.Option("--goal", metavar="GOAL", help="throughput, memory or tokens-per-joule.")
    ] = "throughput",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory of a device: 24GiB.", show_default=False)
    ] = "",
    devices: Annotated[
        Optional[int],  # noqa: UP045 - typer reads it
        typer.Option("--devices", metavar="N", help="Devices; the most measured by default."),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="DTYPE", help="fp32, bf16, ...", show_default=False)
    ] = "",
    work: Annotated[
        str,
        typer.Option("--work", metavar="WORK", help="Which, where a run has several.", show_default=False),
    ] = "",
    avoid: Annotated[
        list[str], typer.Option("--avoid", metavar="GLOB", help="Strategies not to take.", show_default=False)
    ] = [],  # noqa: B006
    within: Annotated[
        str, typer.Option("--within", metavar="PART", help="Goal memory: slower than the fastest by at most.")
    ] = "10%",
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Say what to train with, and why."""
    from distbench.cli.picking import pick_case

    return pick_case(
        name,
        goal=goal,
        memory=memory,
        devices=devices,
        precision=precision,
        work=work,
        avoid=avoid,
        within=within,
        out=out,
        as_json=as_json,
    )


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN_A RUN_B...", help="The run before, and those after; a suite is run."),
    ],
    html: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Option("--html", metavar="FILE", help="Also write a page that opens without a network."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    out: Out = REPORTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show two or more runs side by side."""
    from distbench.cli.comparing import compare_runs

    return compare_runs(names, html=html, out=out, markdown=markdown, as_json=as_json, quiet=quiet)


@app.command()
def export(
    name: RunName,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TOOL", help="tensorboard, mlflow, wandb or pytest-benchmark.", show_default=False
        ),
    ],
    into: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Option("--into", metavar="DIR", help="An empty folder, or a storage of pytest-benchmark."),
    ] = None,
    out: Out = REPORTS,
) -> int:
    """Send a run's curves, or times, to another tool."""
    from distbench.cli.exporting import export_run

    return export_run(name, to, into, out=out)


@app.command()
def adopt(
    name: RunName,
    wanted: Annotated[str, typer.Argument(metavar="CASE", help="A case: its name, label or id.")],
    format_: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="deepspeed, accelerate, transformers, torch or torchtitan.",
            show_default=False,
        ),
    ],
    into: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads it
        typer.Option("--into", metavar="DIR", help="Write the files there.", show_default=False),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Adopt a case that differs from its reference, too.")
    ] = False,
    out: Out = REPORTS,
    as_json: Json = False,
) -> int:
    """Write a case as the configuration to paste."""
    from distbench.cli.adopting import adopt_case

    return adopt_case(name, wanted, format_, into=into, force=force, out=out, as_json=as_json)


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="A query, in DuckDB's SQL.", show_default=False)
    ] = "",
    names: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads it
        typer.Argument(metavar="[RUN]...", help="Runs to ask; all by default.", show_default=False),
    ] = None,
    out: Out = REPORTS,
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="table, csv, json or markdown.")
    ] = "table",
    tables: Annotated[bool, typer.Option("--tables", help="Print the tables and their columns.")] = False,
) -> int:
    """Ask one or many runs in SQL."""
    from distbench.cli.querying import ask, show_tables

    if tables:
        return show_tables([name for name in (sql, *(names or [])) if name], out=out, format_=format_)
    return ask(sql, names or [], out=out, format_=format_)
