"""What a suite of one strategy at one world size plans, for tests that launch nothing."""

from __future__ import annotations

from pathlib import Path

from distbench import plan
from distbench.core.machine import Machine
from distbench.suite import load_suite

MACHINE = Machine("cpu", 8, {"torch": "9", "torchao": "1"}, has_libaio=False, has_compiler=True)


def planned(
    folder: Path, strategy: str, world_size: int, *, machine: Machine = MACHINE, **sections: str
) -> plan.PlannedCase:
    """The only case of *strategy*, as a suite in *folder* has it, with other *sections* of that suite."""
    suite = folder / "suite.yaml"
    text = "".join(f"{key}: {value}\n" for key, value in sections.items())
    suite.write_text(f"{text}world_sizes: [{world_size}]\nstrategies: [{{{strategy}}}]\n")
    (item,) = plan.make_plan(load_suite(suite), machine).cases
    return item
