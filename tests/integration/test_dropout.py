"""Dropout is turned off where trainings are compared, by whatever way a model drops."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from distbench.core.case import PluginChoice
from distbench.jobs.equivalence.arms import NOT_CHECKED
from distbench.workloads.user import UserModel
from support.records import case
from support.runs import Finished, run_in


def attention() -> Any:
    from torch import nn

    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)


def recurrent() -> Any:
    from torch import nn

    class Last(nn.LSTM):
        def forward(self, rows: Any) -> Any:
            return super().forward(rows)[0]

    return Last(8, 8, num_layers=2, dropout=0.5)


def attribute() -> Any:
    from torch import nn
    from torch.nn import functional

    class Paths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop_prob = 0.5

        def forward(self, rows: Any) -> Any:
            return functional.dropout(rows, self.drop_prob, self.training)

    return Paths()


def configured() -> Any:
    from torch import nn
    from torch.nn import functional

    class Config(SimpleNamespace):
        pass

    class Configured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = Config(text=Config(attention_dropout=0.5))

        def forward(self, rows: Any) -> Any:
            return functional.dropout(rows, self.config.text.attention_dropout, self.training)

    return Configured()


WAYS = {"attention": 4, "recurrent": 1, "attribute": 1, "configured": 1}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_drops_nothing_once_its_dropout_is_off(way, tmp_path):
    import torch

    from distbench.strategies.base import RankContext
    from distbench.worker.dropout import without_dropout

    of = dataclasses.replace(case("ddp"), workload=PluginChoice("user", {"model": f"test_dropout:{way}"}))
    workload, rows = UserModel(f"test_dropout:{way}"), torch.randn(4, 6, 8)
    setting = RankContext(of, workload, tmp_path, torch.device("cpu"), 0, 1, tmp_path)
    off, told = without_dropout(setting)
    assert told.endswith(f", and {WAYS[way] - 1} more" if WAYS[way] > 1 else ", p = 0.5")
    dropping, bare = workload.module(), off.workload.module()
    assert not torch.equal(dropping(rows), dropping(rows))
    assert torch.equal(bare(rows), bare(rows))
    # the workload of others keeps its own
    assert without_dropout(setting)[1] == told


def test_a_probability_in_a_configuration_of_a_head_that_is_not_there_is_none(tmp_path):
    import torch
    from transformers import GPT2Config

    from distbench.strategies.base import RankContext
    from distbench.worker.dropout import without_dropout
    from distbench.workloads.huggingface import HuggingFace

    assert GPT2Config().summary_first_dropout > 0, "else this tests nothing"
    none = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    workload = HuggingFace(model_type="gpt2", config={"n_layer": 1, "n_head": 2, "n_embd": 8, **none})
    setting = RankContext(case("ddp"), workload, tmp_path, torch.device("cpu"), 0, 1, tmp_path)
    assert without_dropout(setting)[1] == ""


@pytest.mark.parametrize("strategy", ["ddp", "zero: {stage: 1}"])
def test_ranks_with_other_samples_draw_other_numbers_and_each_trial_the_same(run_suite, strategy):
    done = run_suite(f"""
workload: {{user: {{model: "odd:Dropout", length: 16, loss_function: "odd:drawn_loss"}}}}
data: text
batch: {{global_batch_size: 4}}
measure: {{warmup: 1, steps: 3, trials: 2}}
world_sizes: [2]
strategies: [{strategy if strategy == "ddp" else "{" + strategy + "}"}]
""")
    assert done.code == 0, done.errors
    trials = [Finished.read(file) for file in sorted(done.folder.glob("trials/*/*/record.json"))]
    losses = [record["samples"]["loss"] for record in trials]
    assert len(losses) == 2
    assert losses[0] == losses[1]
    first, second = losses[0]
    assert len({*first, *second}) == 6


CHECKED = """
workload: {user: {model: "odd:Dropout", length: 16}}
data: text
batch: {global_batch_size: 4}
measure: {trials: 0}
world_sizes: [2]
strategies: [ddp]
"""


def test_a_suite_can_refuse_to_check_a_model_with_dropout(run_suite):
    done = run_suite(f"{CHECKED}check: {{dropout: refuse, steps: 2, perturbed: 4}}")
    (found,) = [each["equivalence"] for each in done.cases.values()]
    assert found["verdict"] == NOT_CHECKED
    assert all("dropout (drop, p = 0.1)" in arm["reason"] for arm in found["arms"])
    assert all("check: {dropout: off}" in arm["reason"] for arm in found["arms"])


def test_a_model_with_dropout_resumes_without_it(tmp_path):
    done = run_in(tmp_path, f"{CHECKED}checkpoint: {{steps_before: 2, steps_after: 2}}")
    assert done.code == 0, done.errors
    assert {each["verdict"] for each in done.checkpoints} == {"same"}
