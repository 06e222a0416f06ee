"""``distbench doctor``: check nodes, network and limits before a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distbench.cli import options
from distbench.cli.output import print_json, print_note, print_text, wrap_to_terminal
from distbench.core.units import format_count

if TYPE_CHECKING:
    from distbench.doctor import Diagnosis, NetworkLink

# the checks don't depend on the workload
_MINIMAL_SUITE = "{workload: mlp, strategies: [single], batch: {global_batch_size: 1}}"


def doctor(
    context: typer.Context,
    suite: Annotated[
        Path | None,
        options.argument("[SUITE]", "Check the launcher and the device of this suite (default: this host)."),
    ] = None,
    set_: options.SetOption = [],
    device: options.DeviceOption = "",
    on: options.OnOption = "",
    nodes: options.NodesOption = None,
    out: options.OutOption = options.DEFAULT_RUNS_FOLDER,
    as_json: options.JsonOption = False,
) -> int:
    """Check nodes, network, limits and GPUs."""
    from distbench.cli.job_commands import run_as_job
    from distbench.cli.queue_submission import to_arguments
    from distbench.cli.started_ranks import join_started_ranks
    from distbench.core import registry
    from distbench.doctor import diagnose, measured_links, probe_ranks
    from distbench.suite import load_suite, parse_suite_text

    given = options.make_overrides(set_, [], "", device, on=on)
    loaded = load_suite(suite, given) if suite else parse_suite_text(_MINIMAL_SUITE, given)
    if on:
        words = [*to_arguments(given), *(["--json"] if as_json else [])]
        return run_as_job(loaded, out, nodes, words)
    join_started_ranks(context, loaded, out)
    if not as_json:
        print_note(f"checking the hosts of launcher {loaded.launcher.name} (less than a minute)")
    found = probe_ranks(loaded, out)
    launcher = registry.create_plugin("launchers", loaded.launcher)
    diagnoses = diagnose(found, getattr(launcher, "may_differ", ()))
    if as_json:
        links = [_link_json(link) for link in measured_links(found)]
        print_json({"findings": [dataclasses.asdict(each) for each in diagnoses], "links": links})
    else:
        _print(diagnoses)
    return 1 if any(each.grade == "problem" for each in diagnoses) else 0


def _link_json(link: NetworkLink) -> dict[str, Any]:
    return {
        "first": link.first,
        "second": link.second,
        "kind": link.kind,
        "bits_per_s": link.bits_per_s,
        "round_trip_s": link.exchange.round_trip_s,
        "bytes": link.exchange.bytes,
    }


def _print(diagnoses: Sequence[Diagnosis]) -> None:
    widest = max(len(each.check) for each in diagnoses)
    for each in diagnoses:
        where = f"{each.where}: " if each.where else ""
        print_text(
            wrap_to_terminal(f"{each.grade:<7}  {each.check:<{widest}}  {where}{each.what}", 0, 11 + widest)
        )
        if each.remedy:
            print_text(wrap_to_terminal(f"-> {each.remedy}", 11 + widest))
    bad = [each for each in diagnoses if each.grade != "ok"]
    problems = format_count(sum(each.grade == "problem" for each in bad), "problem")
    print_text()
    print_text(f"{problems}, {format_count(sum(each.grade == 'warning' for each in bad), 'warning')}")
