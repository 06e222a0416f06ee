"""Train with a loss scaler, and tell in the end what of torch and Python is not as it was at the start.

python untouched.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import optimizer as of_torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter


def state(model: nn.Module, scaler: torch.amp.GradScaler) -> dict[str, str]:
    return {
        "backward": str(torch.autograd.backward),
        "batches": str(_BaseDataLoaderIter.__next__),
        "scaler": str(vars(scaler).get("step")),
        "exit": str(os._exit),
        "hook of errors": str(sys.excepthook),
        "imports": str(sys.meta_path),
        "hooks of modules": str([(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]),
        "modes": str(torch.utils._python_dispatch._len_torch_dispatch_stack()),
    }


def main() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(400, 32), torch.randint(0, 10, (400,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    updates = []
    of_torch.register_optimizer_step_post_hook(lambda *_: updates.append(1))
    before = state(model, scaler)
    losses = []
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if len(losses) == 12:
                # an overflow, after which the scaler skips the update
                model[0].bias.grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
    after = state(model, scaler)
    hooks = [len(of_torch._global_optimizer_pre_hooks), len(of_torch._global_optimizer_post_hooks)]
    folder = Path(sys.argv[1])
    (folder / "losses0.json").write_text(json.dumps(losses))
    changed = {name: [before[name], after[name]] for name in before if before[name] != after[name]}
    told = {"changed": changed, "hooks": hooks, "updates": len(updates)}
    (folder / "state.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
