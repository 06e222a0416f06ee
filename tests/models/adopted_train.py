"""A user's training script, as ``distbench adopt`` tells to write it for each of its formats.

It lies as train.py beside the adopted files and case.json, and each rank leaves its losses in a file.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distbench.core import lr_schedule, registry
from distbench.core.case import Case
from distbench.core.serialization import decode
from distbench.strategies.base import RankContext
from distbench.worker.batches import MicroBatchReader
from distbench.workloads.base import cross_entropy

STEPS = 3
TOLD = json.loads(Path("case.json").read_text())
CASE = decode(Case, TOLD["case"], "case.json")
WORKLOAD = registry.create_plugin("workloads", CASE.workload)
STRATEGY = registry.create_plugin("strategies", CASE.strategy)


def micro_batches(rank: int) -> list[dict[str, torch.Tensor]]:
    parts = [STRATEGY.data_parallel_rank(each, CASE.world_size) for each in range(CASE.world_size)]
    cpu = torch.device("cpu")
    setting = RankContext(CASE, WORKLOAD, Path(), cpu, rank, CASE.world_size, Path(), data_rank_of=parts)
    feed = MicroBatchReader(setting)
    return [batch for step in range(STEPS) for batch in feed.micro_batches(step)]


class Rows(torch.utils.data.Dataset):
    """The rows of all ranks in the order in which Accelerate deals out whole micro-batches."""

    def __init__(self) -> None:
        readers = range(STRATEGY.data_parallel_size(CASE.world_size))
        dealt = zip(*(micro_batches(rank) for rank in readers), strict=True)
        batches = list(itertools.chain.from_iterable(dealt))
        self.columns = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


class WithLoss(nn.Module):
    """The model as Trainer wants it: the labels go in, the loss comes out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": WORKLOAD.loss(self.module, {"input_ids": input_ids, "labels": labels})}


def split_by(adopted: ModuleType) -> Any:
    """Return the model of the case, stored as users have theirs, and split as the adopted file does."""
    # only rank 0 writes; imports may have drawn
    torch.manual_seed(CASE.seed)
    WORKLOAD.module().model.save_pretrained("whole")
    dist.barrier()
    return adopted.split_model("whole")


def loss_of_logits(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"])


def by_torch() -> list[float]:
    import adopted_torch as adopted

    device = adopted.setup()
    module = WORKLOAD.module()
    batches = micro_batches(dist.get_rank())
    if CASE.strategy.name == "pp":
        layers, stage_of = WORKLOAD.layers(module), WORKLOAD.stage
        model, optimizer = adopted.prepare(module, layers, device, stage_of, cross_entropy)
        pairs = [(batch["input_ids"], batch["labels"]) for batch in batches]
        return [float(loss) for loss in adopted.train(model, optimizer, pairs)]
    model, optimizer = adopted.prepare(module, WORKLOAD.layers(module), device)
    return [float(loss) for loss in adopted.train(model, optimizer, batches, WORKLOAD.loss)]


def by_deepspeed() -> list[float]:
    import deepspeed

    torch.manual_seed(CASE.seed)
    module = WORKLOAD.module()
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=module.parameters(),
        config="ds_config.json",
        # which the file can't express, as is told beside it
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda update: lr_schedule.lr_factor(CASE.optimizer, update)
        ),
    )
    losses = []
    for batch in micro_batches(dist.get_rank()):
        loss = WORKLOAD.loss(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    number = CASE.batch.gradient_accumulation_steps
    return [sum(losses[i : i + number]) / number for i in range(0, len(losses), number)]


def by_accelerate() -> list[float]:
    import adopted_accelerate as adopted

    accelerator = adopted.setup()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=CASE.batch.micro_batch_size)
    if CASE.strategy.name == "tp":
        module = split_by(adopted)
        layers, loss_of = list(module.model.layers), loss_of_logits
    else:
        module = WORKLOAD.module()
        layers, loss_of = WORKLOAD.layers(module), WORKLOAD.loss
    model, optimizer, loader = adopted.prepare(accelerator, module, layers, loader)
    assert TOLD["wrapper"] == type(model).__name__, type(model)
    return [float(loss) for loss in adopted.train(accelerator, model, optimizer, loader, loss_of)]


def by_transformers() -> list[float]:
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    class InOrder:
        """Takes the samples as they come; Trainer would shuffle them."""

        def _get_train_sampler(self, train_dataset: Rows | None = None) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    if Path("adopted_trainer.py").exists():
        import adopted_trainer

        adopted_trainer.setup()
        base = adopted_trainer.AdoptedTrainer
    else:
        torch.manual_seed(CASE.seed)
        base = Trainer
    if CASE.strategy.name == "tp":

        class OfLogits(base):
            """Takes the loss of the case, whose labels are shifted already."""

            def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
                return loss_of_logits(model, inputs)

        base = OfLogits
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file("trainer_args.json")
    arguments.max_steps, arguments.logging_steps, arguments.save_strategy = STEPS, 1, "no"
    arguments.report_to = []
    split = CASE.strategy.name == "tp"
    model = split_by(adopted_trainer) if split else WithLoss(WORKLOAD.module())
    trainer = type("Ordered", (InOrder, base), {})(model=model, args=arguments, train_dataset=Rows())
    if split:
        trainer.model_accepts_loss_kwargs = False
    trainer.train()
    assert TOLD["wrapper"] == type(trainer.model_wrapped).__name__, type(trainer.model_wrapped)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    found = globals()[f"by_{TOLD['format']}"]()
    Path(f"losses-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    # interpreters that end normally after gloo's teardown abort now and then
    dist.barrier()
    os._exit(0)
