"""How often a check finds a mistake of a given size, and how often it blames what is right.

Two emulated ranks train three small models (a decoder with a tied embedding, two layers with biases, a
classifier) with several seeds, right and with one of ``MISTAKES``; eight steps with AdamW and with SGD. In
16 bits the trainings in fp32 are left out, so what is found is found in 16 bits alone. Prints a line for each
mistake: in how many of the checks it was found, and the median of its largest fraction of the envelope.
Takes some 8 minutes on one core; by hand, from the root of the repository:

    python tests/benchmarks/planted.py [--seeds 4] [--compute fp32 bf16 fp16]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from distbench.jobs.equivalence import CheckSection
from distbench.jobs.equivalence.arms import DIFFERS
from support.emulation import BIASED, CLASSIFIER, DECODER, emulated, laboratory

SIZED = ("gradients", "matrix", "norms", "half-of-rows", "rank", "updates")
MISTAKES = [
    *((f"{what}-scaled", by) for by in (0.005, 0.05) for what in SIZED),
    *(("partly-late", by) for by in (0.005, 0.05, 0.3)),
    ("decay-scaled", 0.5),
    *(("rows-frozen", by) for by in (0.01, 0.1)),
    *(
        (bug, 0.0)
        for bug in (
            "gradients-one-step-late",
            "tied-embedding-counted-twice",
            "momentum-zeroed-each-third-step",
            "decay-not-on-norms",
            "clipped-at-1.01",
            "eps-of-the-dtype",
            "sign-of-one-element",
            "moments-in-bf16",
            "reduced-in-bf16",
        )
    ),
]
MODELS = {"decoder": DECODER, "biased": BIASED, "classifier": CLASSIFIER}


def found(compute: str, seeds: int) -> dict[str, list[tuple[bool, float]]]:
    """Of each label whether it differs, and its largest fraction of the envelope, by check."""
    seen: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    check = CheckSection(fp32=False, steps=8)
    for name, workload in MODELS.items():
        for seed in range(1, seeds + 1):
            mistakes = [("none", 0.0), *MISTAKES]
            if name != "decoder":
                mistakes.remove(("tied-embedding-counted-twice", 0.0))
            cases = [emulated(bug, workload, compute, by=by, seed=seed) for bug, by in mistakes]
            with tempfile.TemporaryDirectory() as folder, laboratory(Path(folder)) as lab:
                for label, verdict in lab.verdicts(cases, check).items():
                    seen[label].append((verdict.word == DIFFERS, verdict.detail.limit_share))
    return seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--compute", nargs="+", default=["fp32", "bf16", "fp16"])
    asked = parser.parse_args()
    tables = {compute: found(compute, asked.seeds) for compute in asked.compute}
    print("| mistake | " + " | ".join(f"{compute} | furthest" for compute in tables) + " |")  # noqa: T201
    for label in next(iter(tables.values())):
        cells = []
        for table in tables.values():
            checks = table[label]
            furthest = statistics.median(extent for _, extent in checks)
            cells.append(f"{sum(is_found for is_found, _ in checks)} of {len(checks)} | {furthest:.2g}")
        print(f"| {label.removeprefix('emulated-')} | {' | '.join(cells)} |")  # noqa: T201
    for compute, table in tables.items():
        planted = [each for label, checks in table.items() if "-none" not in label for each in checks]
        print(f"{compute}: {sum(is_found for is_found, _ in planted)} of {len(planted)}")  # noqa: T201


if __name__ == "__main__":
    main()
