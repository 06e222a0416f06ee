"""How often a check blames a strategy that is right: real ranks, many strategies, models and dtypes.

Runs `distbench run --check` on two ranks for each of ``MODELS``, in fp32, bf16 and fp16; ten steps with AdamW
and with SGD, and in 16 bits without the trainings in fp32, so each dtype is judged by itself. Prints a line
for each dtype and strategy: the verdicts, and the largest fraction of the envelope that any took. Takes some
40 minutes on two quiet cores; by hand, from the root of the repository:

    python tests/benchmarks/honest_verdicts.py FOLDER [--compute fp32 bf16 fp16] [--models 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

DENSE = """
  - ddp
  - ddp: {sharded_optimizer: true}
  - fsdp: {version: [1, 2]}
  - fsdp: {sharding: grad_op}
  - zero: {stage: [1, 2, 3]}
  - tp
  - cp
  - pp: {micro_batches: 2}
"""
EXPERTS = """
  - ddp
  - fsdp
  - ep
"""
# (options of the transformer, global batch, seeds, strategies)
MODELS = [
    ("dim: 64, depth: 2, vocab_size: 256, seq_len: 16", 8, [1, 2], DENSE),
    ("dim: 64, depth: 6, vocab_size: 256, seq_len: 16", 64, [1], DENSE),
    ("dim: 64, depth: 2, vocab_size: 8192, seq_len: 64", 4, [1, 2], DENSE),
    ("dim: 128, depth: 2, vocab_size: 32768, seq_len: 16", 2, [1], DENSE),
    ("dim: 32, depth: 2, vocab_size: 131072, seq_len: 16", 2, [1], DENSE),
    ("dim: 128, depth: 4, vocab_size: 1024, seq_len: 256", 4, [1, 2], DENSE),
    ("dim: 32, depth: 2, vocab_size: 256, seq_len: 1024", 2, [1], DENSE),
    ("dim: 64, depth: 2, vocab_size: 256, seq_len: 16, experts: 4", 8, [1, 2], EXPERTS),
]


def suite(model: str, rows: int, seeds: list[int], strategies: str, compute: str) -> str:
    """The suite of one model in one dtype."""
    return f"""
workload: {{transformer: {{{model}, heads: 4, kv_heads: 4}}}}
batch: {{global_batch_size: {rows}}}
optimizer: {{name: adamw, lr: 0.001, clip_grad_norm: 1.0, weight_decay: 0.1}}
precision: {compute}
world_sizes: [2]
strategies:{strategies}
axes: {{seed: {seeds}}}
measure: {{trials: 0}}
check: {{steps: 10, fp32: false, minutes: 30}}
"""


def checked(folder: Path, number: int, compute: str) -> list[dict[str, Any]]:
    """The cases of one run that have a verdict."""
    file = folder / f"{compute}-{number}.yaml"
    file.write_text(suite(*MODELS[number], compute))
    command = [sys.executable, "-m", "distbench", "run", str(file), "--check", "--out", str(folder / "runs")]
    subprocess.run(command, stdout=sys.stderr, check=False)
    (run,) = (folder / "runs").glob(f"{file.stem}-*")
    show = [sys.executable, "-m", "distbench", "show", str(run), "--json"]
    told = json.loads(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    return [case for case in told["cases"] if case.get("equivalence")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compute", nargs="+", default=["fp32", "bf16", "fp16"])
    parser.add_argument("--models", nargs="+", type=int, default=[*range(len(MODELS))])
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for compute in asked.compute:
        words: dict[str, Counter[str]] = defaultdict(Counter)
        furthest: dict[str, float] = defaultdict(float)
        for number in asked.models:
            for case in checked(asked.folder, number, compute):
                strategy, evidence = case["label"], case["equivalence"]
                words[strategy][evidence["verdict"]] += 1
                extents = [worst["of_limit"] for arm in evidence["arms"] for worst in arm["worst"]]
                furthest[strategy] = max([furthest[strategy], *extents])
        for strategy, counts in words.items():
            told = ", ".join(f"{count} {word}" for word, count in counts.items())
            print(f"| {compute} | {strategy} | {told} | {furthest[strategy]:.2f} |", flush=True)  # noqa: T201
        total = sum(words.values(), Counter())
        print(f"{compute}: {dict(total)}, at most {max(furthest.values()):.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
