"""Train a tiny GPT-2 with transformers' Trainer on CPUs, two micro-batches a step.

torchrun --nproc-per-node 2 trainer.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.tokens = torch.randint(0, 100, (512, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    arguments = TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=30,
        logging_steps=1,
        learning_rate=1e-3,
        use_cpu=True,
        ddp_backend="gloo",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=100, n_positions=32, attn_pdrop=0.0)
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    (Path(sys.argv[1]) / f"losses{os.environ['RANK']}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
