"""How often the judgement of timed losses is wrong, by what is usual and with what a run then tries.

A training of 25 steps by one process is held against others from the same weights on the same batches:

- honest ones, which only sum in another order: in 2, 4 or 16 micro-batches, or with the rows of each batch in
  another order;
- mistaken ones, which do in this process what the strategy ``unwatched`` of the tests does on two ranks, or
  whose losses are 1% larger from step 15 on.

The verdicts are those of ``losses.peer_groups.compare_timed_losses``, without and with the trainings from
weights moved by rounding that the job ``sensitivity`` makes, and likewise those of ``gate.losses``, one trial
of each arm. Of each mistake stands how often it is found: by a run without and with these, by a gate without
and with. Takes some 40 minutes on one core; by hand, from the root of the repository:

    python tests/benchmarks/honest_losses.py [--seeds 4] [--compute fp32 bf16] [--models 'deep decoder']
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from distbench.analysis.losses.case_losses import DIFFERENT_TRAINING, INDISTINGUISHABLE
from distbench.analysis.losses.peer_groups import compare_timed_losses
from distbench.core import registry
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice
from distbench.core.dtypes import Dtype
from distbench.gate.losses import loss_findings
from distbench.jobs.sensitivity import SensitivitySection
from distbench.record import Record
from distbench.strategies.base import RankContext
from distbench.worker.batches import MicroBatchReader
from distbench.worker.perturb import write_perturbed_weights
from distbench.workloads import weights
from support.emulation import BIASED, CLASSIFIER, DECODER, emulated, laboratory
from support.records import measured

STEPS, ROWS = 25, 16
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DEEP = PluginChoice(
    "transformer",
    {"dim": 64, "depth": 6, "heads": 4, "kv_heads": 2, "ffn_dim": 128, "seq_len": 32, "tied": False},
)
MODELS = {"small decoder": DECODER, "deep decoder": DEEP, "two layers": BIASED, "classifier": CLASSIFIER}
MISTAKES = ("skips-fourth", "half-batch", "stale-gather", "missing-wait", "race")
LATE = "1%-late"
"""Losses that are 1% larger from step 15 on."""
Parts = list[dict[str, torch.Tensor]]


class Training:
    """A training by one process, right or with one of ``MISTAKES``; of two micro-batches each is a rank's."""

    def __init__(self, context: RankContext, mistake: str = "", order: int | None = None) -> None:
        build = registry.create_plugin("strategies", context.case.strategy).build
        self._engine, self._feed = build(context), MicroBatchReader(context, order)
        # the two ranks of a race go apart
        self._other = build(context) if mistake == "race" else None
        self._mistake, self._done = mistake, 0
        self._stale: list[torch.Tensor] | None = None
        self._late: list[torch.Tensor] | None = None

    def losses(self) -> np.ndarray:
        """Of each step (steps,)."""
        return np.array([np.mean(self._step(self._feed.micro_batches(step))) for step in range(STEPS)])

    def _step(self, parts: Parts) -> list[float]:
        if self._other:
            return [self._alone(*each) for each in zip((self._engine, self._other), parts, strict=True)]
        if self._mistake == "half-batch" and self._done:
            parts = [{name: rows[: len(rows) // 2] for name, rows in part.items()} for part in parts]
        parameters = list(self._engine.module.parameters())
        fresh = [parameter.detach().clone() for parameter in parameters]
        if self._mistake == "stale-gather" and self._stale:
            _put(parameters, self._stale)
        if self._mistake == "skips-fourth" and self._done % 4 == 3:
            losses = [float(self._engine._loss(self._engine.module, part).detach()) for part in parts]
        else:
            losses = [float(self._engine.forward_backward(part)) for part in parts]
        _put(parameters, fresh)
        self._stale = fresh
        if self._mistake == "missing-wait":
            own = [parameter.grad.clone() for parameter in parameters]
            _put([parameter.grad for parameter in parameters], self._late or own)
            self._late = own
        self._engine.step()
        self._done += 1
        return losses

    def _alone(self, engine: Any, part: dict[str, torch.Tensor]) -> float:
        engine._accumulation = 1
        loss = float(engine.forward_backward(part))
        engine.step()
        return loss


def _put(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def setting_of(case: Case, folder: Path) -> RankContext:
    """What an engine of *case* is built from."""
    workload = registry.create_plugin("workloads", case.workload)
    options = "-".join(map(str, case.workload.options.values()))
    file = folder / f"{options}-{case.seed}-{case.precision.compute}.safetensors"
    if not file.exists():
        exact = case.initial_weights == "exact"
        weights.save_initial(workload, case.seed, file, case.precision.compute, exact=exact)
    torch.manual_seed(case.seed)
    return RankContext(case, workload, file, torch.device("cpu"), 0, 1, folder)


@dataclasses.dataclass(frozen=True)
class Seed:
    """Losses (steps,) of all trainings of one seed."""

    case: Case
    plain: np.ndarray
    honest: dict[str, np.ndarray]
    mistaken: dict[str, np.ndarray]
    moved: list[np.ndarray]

    @classmethod
    def trained(cls, case: Case, folder: Path) -> Seed:
        """Train *case*, whose batch is in one part."""
        setting = setting_of(case, folder)

        def parts(count: int) -> RankContext:
            return setting_of(dataclasses.replace(case, batch=Batch(ROWS, ROWS // count, count)), folder)

        honest = {f"in {count}": Training(parts(count)).losses() for count in (2, 4, 16)}
        honest |= {f"order {order}": Training(setting, order=order).losses() for order in (101, 102)}
        plain = Training(setting).losses()
        mistaken = {mistake: Training(parts(2), mistake).losses() for mistake in MISTAKES}
        mistaken[LATE] = np.where(np.arange(STEPS) >= 15, 1.01, 1.0) * honest["in 2"]
        return cls(
            case,
            plain,
            honest,
            mistaken,
            [
                Training(
                    dataclasses.replace(setting, weights_file=write_perturbed_weights(setting, number)),
                    order=number,
                ).losses()
                for number in range(SensitivitySection.trainings)
            ],
        )

    def word(self, losses: np.ndarray, *, tries: bool) -> str:
        """Verdict on a case with *losses*; *tries*: with the trainings from moved weights."""
        other = dataclasses.replace(self.case, label="other", name="other", strategy=PluginChoice("ddp"))
        records = [_timed(self.case, self.plain), _timed(other, losses)]
        known = {self.case.id: self.moved} if tries else {}
        return compare_timed_losses(records, {}, known)[other.id].word

    def gated(self, losses: np.ndarray, *, tries: bool) -> str:
        """Verdict of a gate on the losses of a candidate; ``pass`` without a finding."""
        pair = (_timed(self.case, self.plain), _timed(self.case, losses))
        found = loss_findings([pair], "required", self.moved if tries else ())
        return found[0].word if found else "pass"


def _timed(case: Case, losses: np.ndarray) -> Record:
    """The measured trial of *case* that had *losses* (steps,)."""
    kept = {"warmup_losses": [losses[:2].tolist()], "samples": {"loss": [losses[2:].tolist()]}}
    return dataclasses.replace(measured(case), **kept)


def row(name: str, compute: Dtype, rate: float, seeds: int, folder: Path) -> str:
    """Line of the table: shares of honest trainings that are called wrong, and of mistakes that are found."""
    trained = []
    for seed in range(1, seeds + 1):
        case = emulated(workload=MODELS[name], compute=compute, seed=seed, optimizer=OptimizerConfig(lr=rate))
        case = dataclasses.replace(
            case, strategy=PluginChoice("single"), world_size=1, label="single", batch=Batch(ROWS, ROWS, 1)
        )
        trained.append(Seed.trained(case, folder))
    honest = [(seed, losses) for seed in trained for losses in seed.honest.values()]
    usual = Counter(seed.word(losses, tries=False) for seed, losses in honest)
    tried = Counter(seed.word(losses, tries=True) for seed, losses in honest)
    counts = (
        usual[DIFFERENT_TRAINING],
        tried[DIFFERENT_TRAINING],
        tried[INDISTINGUISHABLE],
        *(
            sum(seed.gated(losses, tries=tries) == word for seed, losses in honest)
            for tries, word in ((False, "invalid"), (True, "invalid"), (True, "inconclusive"))
        ),
    )
    found = [
        "/".join(
            str(sum(each == word for each in verdicts))
            for word, verdicts in (
                (DIFFERENT_TRAINING, [seed.word(seed.mistaken[mistake], tries=False) for seed in trained]),
                (DIFFERENT_TRAINING, [seed.word(seed.mistaken[mistake], tries=True) for seed in trained]),
                ("invalid", [seed.gated(seed.mistaken[mistake], tries=False) for seed in trained]),
                ("invalid", [seed.gated(seed.mistaken[mistake], tries=True) for seed in trained]),
            )
        )
        for mistake in (*MISTAKES, LATE)
    ]
    shares = [f"{count / len(honest):.0%}" for count in counts]
    return f"| {' | '.join([compute, name, f'{rate:g}', *shares, *found])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--compute", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    asked = parser.parse_args()
    honest = "| compute | model | rate | another, usual | another, tried | inconclusive"
    honest += " | gate: invalid, usual | invalid, tried | inconclusive"
    print(honest, *MISTAKES, LATE, sep=" | ", end=" |\n")  # noqa: T201
    for compute in asked.compute:
        with tempfile.TemporaryDirectory() as folder, laboratory(Path(folder)):
            for name, rate in itertools.product(asked.models, asked.rates):
                print(row(name, compute, rate, asked.seeds, Path(folder)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
