"""The observation of a script: its own errors never reach the script, and it leaves nothing behind."""

from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.train


def trained(steps: int, **around):
    """Train with an observation whose context *around* is entered; return what it noted and its faults."""
    import torch

    from distbench.worker.scripts.observation import Observation
    from distbench.worker.scripts.span_clock import SpanClock

    faults: list[str] = []
    updates: list[object] = []
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = Observation(SpanClock(torch.device("cpu")), lambda error: faults.append(str(error)))
    before = torch.autograd.backward, len(model._forward_hooks), vars(scaler).get("step")
    seen.install([model], [scaler], updates.append, lambda: None)
    seen.around = around.get("around")
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(3, 4)).pow(2).mean()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    noted = [float(each) for each in seen.losses]
    seen.remove()
    after = torch.autograd.backward, len(model._forward_hooks), vars(scaler).get("step")
    assert after == before
    return noted, losses, updates, faults


def test_a_loss_is_noted_without_the_scale_of_a_loss_scaler():
    noted, losses, updates, faults = trained(3)
    # the losses of the last set of gradients
    assert noted == pytest.approx(losses[-1:])
    assert len(updates) == 3
    assert faults == []


def test_an_error_of_the_observation_does_not_reach_the_script():
    @contextmanager
    def broken(part: str):
        raise RuntimeError(f"cannot observe {part}")
        yield

    _, losses, updates, faults = trained(2, around=broken)
    assert len(losses) == len(updates) == 2
    assert {"cannot observe forward", "cannot observe backward", "cannot observe optimizer"} <= set(faults)
