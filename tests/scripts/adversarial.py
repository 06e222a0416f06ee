"""Train a Wasserstein GAN with DDP on CPUs: three updates of the critic to one of the generator.

torchrun --nproc-per-node 2 adversarial.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 16))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for number, (real,) in enumerate(loader):
        made = generator(torch.randn(len(real), 4))
        of_critic.zero_grad()
        (critic(made.detach()).mean() - critic(real).mean()).backward()
        of_critic.step()
        for weight in critic.parameters():
            weight.data.clamp_(-0.01, 0.01)
        if number % 3 == 2:
            of_generator.zero_grad()
            (-critic(generator(torch.randn(len(real), 4))).mean()).backward()
            of_generator.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
