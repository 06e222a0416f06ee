"""Sizes and identities of batches, of whatever kind a loader gives."""

from collections import UserDict

import pytest

pytestmark = pytest.mark.train


def test_samples_are_the_first_axis_of_the_inputs_and_tokens_are_integers_of_two_axes():
    import torch

    from distbench.worker.scripts.script_batches import BatchSize, batch_size, batch_tensor

    tokens, mask = torch.zeros(4, 16, dtype=torch.long), torch.ones(8, 2)
    for batch in ({"mask": mask, "input_ids": tokens}, UserDict(mask=mask, input_ids=tokens), [tokens, mask]):
        inputs = batch_tensor(batch)
        assert inputs is tokens
        assert batch_size(inputs) == BatchSize(4, 64)
    assert batch_size(torch.zeros(3, 32)) == BatchSize(3)
    # the first has no axis of samples
    assert batch_tensor((torch.tensor(1.0), {"x": [mask]})) is mask
    assert batch_tensor(("words", 3, iter([tokens]))) is None


def test_equal_rows_have_equal_hashes_and_labels_have_none():
    import torch

    from distbench.worker.scripts.script_batches import row_hashes

    rows = torch.arange(12.0).view(3, 4)
    assert row_hashes(rows) == row_hashes(rows.flip(0))[::-1]
    assert len(set(row_hashes(rows))) == 3
    assert len(row_hashes(torch.tensor([0.5, 0.25]))) == 2
    assert row_hashes(rows.bfloat16()) != row_hashes(rows)
    # that two ranks have a 7 among their labels says nothing
    assert row_hashes(torch.tensor([7, 7, 3])) == row_hashes(torch.tensor([[7, 1], [3, 1]])) == []
