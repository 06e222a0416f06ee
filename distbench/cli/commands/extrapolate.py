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

    from distbench.prediction.case_elsewhere import Scaling
    from distbench.record import Record

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
    from distbench.analysis.extrapolation import extrapolate_run
    from distbench.api.stored_runs import damage_json
    from distbench.cli.run_machine import extrapolation_machine
    from distbench.cli.stored_runs import load_run
    from distbench.record import catalog
    from distbench.report import extrapolation_page
    from distbench.report.extrapolation import extrapolation_table, refusals_json
    from distbench.report.overview import view_markdown

    check_exclusive("extrapolate", md=markdown, csv=csv, json=as_json)
    devices = parse_option("--to", to, _device_counts)
    if devices is None:
        raise UsageError("extrapolate: missing --to; give numbers of devices, such as --to 16,64")
    if scaling:
        check_choice("--scaling", scaling, _SCALINGS)
    run = load_run(catalog.find_run(name, out))
    if not any(row.measured for row in run.cases):
        raise UsageError(f"{name}: no case of this run was measured, so that there is nothing to extrapolate")
    machine = extrapolation_machine(run, on, max(devices))
    probes = _probes(rates, out)
    kind = cast("Scaling | None", scaling or None)
    series = extrapolate_run(run, devices, machine, probes=probes, scaling=kind)
    table = extrapolation_table(run, series, machine, is_described=bool(on))
    if html:
        extrapolation_page.write(run.info, series, table, html)
        print_note(f"page: {html}")
    if as_json:
        print_json(
            {
                "run_id": run.info.run_id,
                **table.to_json(),
                "refused": refusals_json(series),
                "damaged": damage_json(run),
            }
        )
    elif csv:
        print_text(table.to_csv())
    elif markdown:
        print_text(view_markdown(table))
    else:
        print_text(table.to_text(terminal_width(), apply_style))
    return 0 if any(each.points for each in series) else 1


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


def _probes(rates: str, out: Path) -> Sequence[Record]:
    """Probes of the run *rates*; empty: none.

    Raises:
        UsageError: there is no such run, or it has no probe.
    """
    from distbench.prediction.probed_rates import PROBE
    from distbench.record import records_of_kind
    from distbench.record.catalog import find_run

    if not rates:
        return []
    probes = records_of_kind(find_run(rates, out).records(), PROBE)
    if not probes:
        raise UsageError(f"--rates {rates}: the run has no probe; distbench probe SUITE measures one")
    return probes
