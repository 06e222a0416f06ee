"""Noise in parameters that are 0 everywhere: equal on all ranks, and gone after each forward pass."""

import pytest

pytestmark = pytest.mark.train


def zeros_and_others():
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    nn.init.zeros_(module[1].weight)
    module[1].weight.data[0] *= -1
    module[1].weight.data[1] = 1e-30
    nn.init.zeros_(module[2].weight).requires_grad_(False)
    nn.init.zeros_(module[2].bias).requires_grad_(False)
    return module


def outputs_with_noise(module, *, is_compiled=False):
    import torch

    from distbench.worker.zero_tensors import noise_in_zero_tensors

    found = []
    module[1].register_forward_hook(lambda _module, _inputs, output: found.append(output.clone()))
    with torch.no_grad(), noise_in_zero_tensors(module, is_compiled=is_compiled):
        found.append(module(torch.ones(1, 4)))
    return found


@pytest.mark.parametrize("is_compiled", [False, True])
def test_trained_tensors_have_noise_in_the_forward_pass_alone(is_compiled):
    import torch

    module = zeros_and_others()
    before = [p.view(torch.int32).clone() for p in module.parameters()]
    hidden, output = outputs_with_noise(module, is_compiled=is_compiled)
    assert hidden.abs().min() > 0
    assert not output.any(), "tensors that are not trained stay 0"
    assert all(
        torch.equal(old, new.view(torch.int32)) for old, new in zip(before, module.parameters(), strict=True)
    )
    assert torch.equal(hidden, outputs_with_noise(zeros_and_others())[0])


def test_a_forward_pass_that_raises_leaves_no_noise():
    import torch

    module = zeros_and_others()
    module[1].register_forward_pre_hook(lambda _module, _inputs: None)
    module[1].forward = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        outputs_with_noise(module)
    assert module[1].weight.max() < 1e-6
    assert torch.signbit(module[1].weight[0]).all()
