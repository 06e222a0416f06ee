"""Hooks of layers run once in the forward and once in the backward pass of each."""

import pytest

pytestmark = pytest.mark.train


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_call_follows_each_layer_forward_and_backward(is_checkpointed):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from distbench.worker.layer_hooks import LayerCallHooks

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    layers = [model[0], model[2]]
    if is_checkpointed:
        for layer in layers:
            plain = layer.forward
            layer.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)
    hooks, seen = LayerCallHooks(layers), []
    hooks.call = lambda: seen.append([layer.weight.grad is not None for layer in layers])
    model(torch.ones(2, 4)).sum().backward()
    # the gradients that are there: none after a forward pass, then those of the layers behind
    assert seen == [[False, False], [False, False], [False, False], [False, True]]
    assert hooks.count == 4
    hooks.remove()
    model(torch.ones(2, 4)).sum().backward()
    assert hooks.count == 4
