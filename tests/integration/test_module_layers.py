"""Layers of live modules: whose FLOPs and bytes an operation is, and whose nodes of the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import nn

pytestmark = pytest.mark.train


def model(recomputes: bool) -> nn.Module:
    """Two blocks of two products, and an activation between them."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if recomputes:
                return checkpoint(lambda y: self.down(self.up(y)), x, use_reentrant=False)
            return self.down(self.up(x))

    return nn.Sequential(Block(), nn.ReLU(), Block())


@pytest.mark.parametrize("recomputes", [False, True])
def test_flops_are_those_of_the_layers_that_multiply(recomputes):
    import torch

    from distbench.metrics.profile.layers import LayerCosts

    blocks, x = model(recomputes), torch.randn(16, 8, requires_grad=True)
    costs = LayerCosts()
    with costs.one_step():
        with costs.observe("forward"):
            loss = blocks(x).square().sum()
        with costs.observe("backward"):
            loss.backward()
            with costs.observe("optimizer"):
                torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    found = costs.counted().layers
    product = 2 * 16 * 8 * 32
    for name in ("*.up", "*.down"):
        layer = found[name, "Linear"]
        assert len(layer.modules) == 2
        assert layer.forward.flops == 2 * product
        # early stop: the last product of a block is not recomputed
        again = recomputes and name == "*.up"
        assert layer.backward.flops == 2 * (2 + again) * product
    assert {key for key, layer in found.items() if layer.forward.flops or layer.backward.flops} == {
        ("*.up", "Linear"),
        ("*.down", "Linear"),
    }
    # reads 2 tensors of 16 x 32 and writes one in the backward pass, reads one and writes one before
    relu = found["*", "ReLU"]
    assert relu.forward.bytes == 2 * 4 * 16 * 8
    assert relu.backward.bytes == 3 * 4 * 16 * 8
    assert found["", ""].forward.bytes > 0


def test_hooks_are_gone_after_the_step_even_if_a_module_raised():
    import torch
    from torch import nn

    from distbench.metrics.profile.layers import LayerHooks

    hooks = LayerHooks()

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    failing = nn.Sequential(nn.Linear(2, 2), Fails())
    with hooks.one_step(), pytest.raises(ValueError, match="no"):
        failing(torch.ones(1, 2))
    assert hooks.current() is None
    ran = [len(layer.modules) for layer in hooks.layers]
    failing[0](torch.ones(1, 2))
    nn.Linear(2, 2)(torch.ones(1, 2))
    assert [len(layer.modules) for layer in hooks.layers] == ran == [1, 1, 1]


def test_rows_have_what_is_known():
    import torch
    from torch import nn

    from distbench.metrics.profile.layer_times import Owner, layer_rows
    from distbench.metrics.profile.layers import LayerHooks

    hooks = LayerHooks()
    with hooks.one_step():
        nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))
    (linear,) = [place for place, layer in enumerate(hooks.layers) if layer.kind == "Linear"]
    seconds = {Owner(linear, in_backward=False): 0.5, Owner(None, in_backward=True): 0.25}
    assert layer_rows(None, hooks.layers, seconds) == [
        {"layer": "*", "kind": "Linear", "modules": 1, "forward_s": 0.5, "backward_s": 0.0},
        {"layer": None, "kind": None, "modules": None, "forward_s": 0.0, "backward_s": 0.25},
    ]


def test_flops_of_an_operator_without_a_formula_are_unknown_and_not_zero():
    import torch
    from torch import nn

    from distbench.metrics.profile.layer_times import layer_rows
    from distbench.metrics.profile.layers import LayerCosts

    recurrent, linear = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 8)
    costs = LayerCosts()
    with costs.one_step(), costs.observe("forward"), torch.no_grad():
        linear(recurrent(torch.ones(2, 4, 8))[0])
    found = {layer.kind: layer.forward.flops for layer in costs.counted().layers.values()}
    assert (found["LSTM"], found["Linear"]) == (None, 2 * 2 * 4 * 8 * 8)
    (row,) = (row for row in layer_rows(costs.counted(), [], None) if row["kind"] == "LSTM")
    assert row["forward_flops"] is None
    assert row["forward_bytes"] > 0
