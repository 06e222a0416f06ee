"""How often the gate is right on this machine: equal arms, and planted slow-downs of known size.

Takes some three hours on two shared cores; by hand, from the root of the repository:

    python tests/benchmarks/campaign.py [--equal 20] [--each 5] [--tolerance 5%]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUITE = """
workload: {user: {model: "planted:Planted", length: 64}}
data: text
batch: {global_batch_size: 16}
strategies: [ddp]
world_sizes: [2]
measure: {warmup: 2, steps: 20, profile_steps: 1}
"""
PARTS = (0.20, 0.10, 0.05)


def gate(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the result of a gate of the suite with these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "distbench", "gate", str(folder / "suite.yaml"), *arguments],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(done.stderr)
    result = dict(json.loads(done.stdout))
    one = pace(result)
    said = f"{one['word']} {one['ratio']:.3f}, {one['pairs']} pairs, {result['minutes']:.1f} min"
    print(" ".join(arguments[:-3]), said, sep=": ", file=sys.stderr, flush=True)
    return result


def pace(result: dict[str, Any]) -> dict[str, Any]:
    """Return the finding on the pace of the only case."""
    (case,) = result["cases"]
    return next(one for one in case["findings"] if one["metric"] == "tokens_per_s")


def rows(folder: Path, equal: int, each: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield what was planted, with the findings on the pace of each gate."""
    same = [pace(gate(folder, "--self-test", "--json", "--out", str(folder))) for _ in range(equal)]
    yield "nothing", same
    tokens = 16 * 64
    step_s = sorted(tokens / one["baseline"] for one in same)[len(same) // 2]
    for kind in ("forward", "rank"):
        for part in PARTS:
            plant = ("--env", f"PLANT={kind}", "--env", f"PLANT_S={part * step_s:.6f}")
            found = [gate(folder, *plant, "--json", "--out", str(folder)) for _ in range(each)]
            yield f"{kind} +{part:.0%}", [pace(one) for one in found]
    found = [gate(folder, "--env", "PLANT=all-reduce", "--json", "--out", str(folder)) for _ in range(each)]
    yield (
        "all-reduce (by its count)",
        [one for result in found for one in result["cases"][0]["findings"] if one["metric"] == "comm_calls"],
    )


def main() -> None:
    """Run the campaign and print a row for each thing planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--equal", type=int, default=20, help="gates of equal arms")
    parser.add_argument("--each", type=int, default=5, help="gates of each thing planted")
    parser.add_argument("--tolerance", default="3%", help="gate.tokens_per_s")
    asked = parser.parse_args()
    rule = f"gate: {{tokens_per_s: {asked.tolerance}, efficiency: false}}\n"
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "suite.yaml").write_text(SUITE + rule)
        for planted, found in rows(Path(name), asked.equal, asked.each):
            words = ", ".join(
                f"{count} {word}" for word, count in Counter(one["word"] for one in found).items()
            )
            ratios = sorted(one["ratio"] for one in found if one["ratio"])
            spread = [one["deviation"] for one in found if one["deviation"]]
            deviation = f"{sum(spread) / len(spread):.3f}" if spread else "-"
            middle = f"{ratios[len(ratios) // 2]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            pairs = sum(one["pairs"] for one in found) / len(found)
            print(
                f"{planted:28} {words:40} ratio {middle}  spread {deviation}  pairs {pairs:.1f}", flush=True
            )


if __name__ == "__main__":
    main()
