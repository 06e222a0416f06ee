"""``distbench doctor``: look at nodes, network and limits before anything is timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from distbench.cli import options
from distbench.cli.job_commands import elsewhere
from distbench.cli.output import note, say, say_json, wrapped
from distbench.core import registry
from distbench.core.units import count_text
from distbench.doctor import Finding, Link, findings, links_of, visit
from distbench.suite import load, of_text

# what is examined doesn't depend on what is trained
_ANY = "{workload: mlp, strategies: [single], batch: {global_batch_size: 1}}"


def doctor(
    suite: Annotated[
        Path | None,
        options.argument("[SUITE]", "Suite whose launcher and device are examined (none: what is around)."),
    ] = None,
    set_: options.Set = [],
    device: options.Device = "",
    on: options.On = "",
    nodes: options.Nodes = None,
    out: options.Out = options.REPORTS,
    as_json: options.Json = False,
) -> int:
    """Examine nodes, network, limits and GPUs."""
    given = options.overrides(set_, [], "", device, on=on)
    loaded = load(suite, given) if suite else of_text(_ANY, given)
    if on:
        named = {"--set": set_, "--device": [device] if device else []}
        words = [word for name, values in named.items() for value in values for word in (name, value)]
        return elsewhere(loaded, out, nodes, [*words, *(["--json"] if as_json else [])])
    if not as_json:
        note(f"examining what launcher {loaded.launcher.name} starts ranks on (under a minute)")
    found = visit(loaded, out)
    launcher = registry.make("launchers", loaded.launcher)
    told = findings(found, getattr(launcher, "may_differ", ()))
    if as_json:
        links = [_plain(link) for link in links_of(found)]
        say_json({"findings": [dataclasses.asdict(each) for each in told], "links": links})
    else:
        _print(told)
    return 1 if any(each.grade == "problem" for each in told) else 0


def _plain(link: Link) -> dict[str, Any]:
    return {
        "first": link.first,
        "second": link.second,
        "kind": link.kind,
        "bits_per_s": link.bits_per_s,
        "round_trip_s": link.exchange.round_trip_s,
        "bytes": link.exchange.bytes,
    }


def _print(told: Sequence[Finding]) -> None:
    widest = max(len(each.check) for each in told)
    for each in told:
        where = f"{each.where}: " if each.where else ""
        say(wrapped(f"{each.grade:<7}  {each.check:<{widest}}  {where}{each.what}", 0, 11 + widest))
        if each.remedy:
            say(wrapped(f"-> {each.remedy}", 11 + widest))
    bad = [each for each in told if each.grade != "ok"]
    problems = count_text(sum(each.grade == "problem" for each in bad), "problem")
    say()
    say(f"{problems}, {count_text(sum(each.grade == 'warning' for each in bad), 'warning')}")
