"""``distbench init --data`` with rows of unequal length or without labels: the suite can be planned."""

import json

import pytest

from distbench.suite import load_suite

pytestmark = pytest.mark.train

DATASETS = """
import numpy as np
from torch import nn

class ReturnsItsLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 8)

    def forward(self, tokens):
        return self.words(tokens).mean()

def unlabelled():
    # the first row is neither the shortest nor the longest
    return [{"input_ids": np.arange(8 + (18 + 7 * row) % 40)} for row in range(64)]

def own_labels():
    return [{**row, "labels": row["input_ids"].tolist()} for row in unlabelled()]
"""
SHIFTED = {"shift_labels": True}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rowdata.py").write_text(DATASETS)
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "dataset", "tokens", "options"),
    [
        ({"packing": True, "max_length": 64}, "unlabelled", 64, {"packing": True}),
        ({"group_by_length": True}, "own_labels", 47, {"padding": "longest", "group_by_length": True}),
    ],
)
def test_a_suite_of_the_trainers_arguments_and_a_dataset_is_planned(
    command, folder, settings, dataset, tokens, options
):
    given = {"output_dir": "out", "per_device_train_batch_size": 2, **settings}
    (folder / "sft_config.json").write_text(json.dumps(given))
    name = f"rowdata:{dataset}"
    code, _, errors = command("init", "--from", "sft_config.json", "--model", "tiny", "--data", name)
    assert code == 0, errors
    work = load_suite(folder / "suite.yaml").work
    assert work["workload"]["transformer"]["seq_len"] == tokens
    assert work["data"] == {"user": {"dataset": name, **options, **SHIFTED}}
    code, output, errors = command("plan", "suite.yaml")
    assert code == 0, errors
    assert "yours" in output


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tiny", SHIFTED),
        # its loss function will get rows as they are
        ("rowdata:ReturnsItsLoss", {}),
    ],
)
def test_a_first_suite_labels_tokens_that_have_no_labels(command, folder, model, options):
    code, _, errors = command("init", "--model", model, "--data", "rowdata:unlabelled", "--devices", "1")
    assert code == 0, errors
    assert load_suite(folder / "suite.yaml").work["data"] == {
        "user": {"dataset": "rowdata:unlabelled", **options}
    }
