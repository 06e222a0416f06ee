"""The figure of merit over held-out rows."""

import pytest


@pytest.mark.parametrize("at_once", [1, 70, 10**6])
def test_the_sums_are_those_of_all_logits_however_many_are_made_exact_at_a_time(at_once):
    import torch

    from distbench.worker.evaluation import evaluation_sums

    torch.manual_seed(3)
    logits, labels = torch.randn(23, 10, dtype=torch.bfloat16), torch.randint(10, (23,))
    chosen = logits.double().log_softmax(-1)[range(23), labels]
    correct = sum(int(row.argmax()) == label for row, label in zip(logits, labels.tolist(), strict=True))
    assert evaluation_sums(logits, labels, at_once).tolist() == pytest.approx(
        [-chosen.sum().item(), correct, 23]
    )
