"""Train a small language model with DistributedDataParallel, as a tutorial does.

torchrun --nproc-per-node 2 train_ddp.py --steps 20
"""

import argparse
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Characters(Dataset):
    """Pieces of a text, with the next character at each position as the label."""

    def __init__(self, length=48, pieces=256):
        alphabet = "".join(map(chr, range(97, 123)))
        self.ids = torch.tensor([ord(c) for i in range(4000) for c in f"{alphabet[i % 26]} is {i}. "])
        self.length, self.pieces = length, pieces

    def __len__(self):
        return self.pieces

    def __getitem__(self, index):
        piece = self.ids[index * self.length : (index + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class CharacterModel(nn.Module):
    def __init__(self, vocab=128, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return self.head(x)


def main(steps):
    on_gpu = torch.cuda.is_available()
    init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    data = Characters()
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    model = DistributedDataParallel(CharacterModel().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _, (ids, labels) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        logits = model(ids.to(device))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.to(device).flatten())
        loss.backward()
        optimizer.step()
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    main(parser.parse_args().steps)
