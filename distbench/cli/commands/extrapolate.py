"""``distbench extrapolate``: what a measured run would do on more devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from distbench.cli.decorators import reads_runs
from distbench.cli.options import (
    DEFAULT_RUNS_FOLDER,
    CsvOption,
    JsonOption,
    MarkdownOption,
    OutOption,
    RunArgument,
    check_choice,
    check_exclusive,
    option,
    parse_counts,
    parse_option,
)
from distbench.cli.output import apply_style, print_json, print_note, print_text, terminal_width
from distbench.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distbench.analysis.extrapolation import ExtrapolatedSeries
    from distbench.analysis.run import RunAnalysis
    from distbench.analysis.run_probes import RunProbes
    from distbench.prediction.world_size_change import Scaling
    from distbench.tables.table import Table

_SCALINGS = ("weak", "strong")


@reads_runs
def extrapolate(
    name: RunArgument,
    to: Annotated[str, option("--to", "N,N", "Numbers of devices: 16,64,1024.")] = "",
    on: Annotated[
        str,
        option(
            "--on",
            "MACHINE",
            "Nodes of the run's GPUs: h100-sxm:8x8 (8 nodes of 8) or machine.yaml (default: as the run's).",
        ),
    ] = "",
    rates: Annotated[
        str,
        option("--rates", "RUN", "Run with a probe of as many devices (default: that of the run itself)."),
    ] = "",
    scaling: Annotated[
        str,
        option(
            "--scaling", "KIND", "weak (same batch per device) or strong (same in all; default: as the run)."
        ),
    ] = "",
    out: OutOption = DEFAULT_RUNS_FOLDER,
    html: Annotated[Path | None, option("--html", "FILE", "Also write a page with charts.")] = None,
    markdown: MarkdownOption = False,
    csv: CsvOption = False,
    as_json: JsonOption = False,
) -> int:
    """Carry a measured run to more devices.

    Each measured step is multiplied by the ratio of two predicted ones, from a probe or data sheets. What
    they do not decide is refused, with the reason.
    """
    from distbench.cli.stored_runs import load_run
    from distbench.record import catalog
    from distbench.report import extrapolation_page

    check_exclusive("extrapolate", md=markdown, csv=csv, json=as_json)
    devices = parse_option("--to", to, _device_counts)
    if devices is None:
        raise UsageError("extrapolate: missing --to; give numbers of devices, such as --to 16,64")
    if scaling:
        check_choice("--scaling", scaling, _SCALINGS)
    run = load_run(catalog.find_run(name, out))
    if not any(row.measured for row in run.cases):
        raise UsageError(f"{name}: no case of this run was measured, so that there is nothing to extrapolate")
    kind = cast("Scaling | None", scaling or None)
    series, table = _extrapolation(run, devices, on, _probes(run, rates, out), kind)
    if html:
        extrapolation_page.write(run.info, series, table, html)
        print_note(f"page: {html}")
    _print_table(run, series, table, "json" if as_json else "csv" if csv else "md" if markdown else "")
    return 0 if any(each.points for each in series) else 1


def _extrapolation(
    run: RunAnalysis, devices: Sequence[int], on: str, probes: RunProbes, scaling: Scaling | None
) -> tuple[list[ExtrapolatedSeries], Table]:
    """Series of the cases of *run*, and their table."""
    from distbench.analysis.extrapolation import extrapolate_run
    from distbench.cli.run_machine import other_machine, run_machine
    from distbench.report.extrapolation import extrapolation_table

    other = other_machine(run, on)
    own = run_machine(run, other, max(devices))
    series = extrapolate_run(run, devices, own, on=other, probes=probes, scaling=scaling)
    return series, extrapolation_table(run, series, own, probes, on=other)


def _print_table(run: RunAnalysis, series: Sequence[ExtrapolatedSeries], table: Table, form: str) -> None:
    """Print *table* in a *form*: json, csv, md, or empty for people."""
    from distbench.api.stored_runs import damage_json
    from distbench.report.extrapolation import refusals_json
    from distbench.report.overview import view_markdown

    if form == "json":
        more = {"refused": refusals_json(series), "damaged": damage_json(run)}
        print_json({"run_id": run.info.run_id, **table.to_json(), **more})
    elif form == "csv":
        print_text(table.to_csv())
    elif form == "md":
        print_text(view_markdown(table))
    else:
        print_text(table.to_text(terminal_width(), apply_style))


def _device_counts(text: str) -> list[int]:
    """Distinct numbers of devices in *text*, in ascending order.

    Raises:
        ValueError: there is something else.
    """
    from distbench.core.case import MAX_WORLD_SIZE

    counts = parse_counts(text)
    for count in counts:
        if not 1 <= count <= MAX_WORLD_SIZE:
            raise ValueError(f"{count} devices; must be from 1 to {MAX_WORLD_SIZE:,}")
    return sorted({*counts})


def _probes(run: RunAnalysis, rates: str, out: Path) -> RunProbes:
    """Probes of *run*, and of the run *rates* unless that is empty.

    Raises:
        UsageError: there is no such run, it has no probe, or none on devices like those of *run*.
    """
    from distbench.analysis.run_probes import RunProbes
    from distbench.cli.probe_runs import find_probe_run

    if not rates:
        return RunProbes.of(run)
    others = find_probe_run(rates, out)
    name = others.folder.name
    probes = RunProbes.of(run, {name: others.records()})
    if name not in probes.used and (reason := probes.mismatch(name)):
        raise UsageError(f"--rates {rates}: its probes {reason}; measure a probe on those")
    return probes
