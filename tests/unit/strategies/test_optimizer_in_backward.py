"""The optimizer in the backward pass: the same training, what it keeps, and what it can't have."""

import dataclasses
import re
from types import SimpleNamespace
from typing import Any

import pytest

from distbench.adopt import export_case
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.jobs.equivalence.arms import DIFFERS, ROUNDING
from distbench.strategies.base import Strategy
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.single import Single
from support.records import case
from support.runs import Finished
from support.theory_checks import assert_same_training, bytes_by_operation

MACHINE = Machine("cpu", 2, {"torch": "9"}, has_libaio=False, has_compiler=True)
FSDP = FullyShardedDataParallel(optimizer_in_backward=True)
SINGLE = Single(optimizer_in_backward=True)
TINY = {"dim": 64, "depth": 2, "heads": 4, "kv_heads": 4, "ffn_dim": 128, "vocab_size": 256, "seq_len": 16}
BLOCK = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64
"""Parameters of a block: attention, SwiGLU, and two norms."""
ALL_PARAMETERS = 2 * BLOCK + 2 * 256 * 64 + 64


def decoder_case(strategy: Strategy, world_size: int, **changes: Any) -> Case:
    """A case of the tiny decoder."""
    return case(strategy.label, world_size, **{"workload": PluginChoice("transformer", TINY), **changes})


@pytest.mark.parametrize("strategy", [SINGLE, FSDP])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"optimizer": OptimizerConfig(clip_grad_norm=0.5)},
            r"clip_grad_norm = 0\.5 needs .* remove clip_grad_norm",
        ),
        ({"batch": Batch(8, 2, 4)}, "gradient_accumulation_steps = 4: .* use larger micro-batches"),
        (
            {"precision": PrecisionConfig("fp16", "fp16", loss_scale=1024.0)},
            "loss_scale = 1024.0: .* use precision: bf16",
        ),
        (
            {"optimizer": OptimizerConfig(name="lamb", kernel="loop")},
            "= lamb: .* counts updates of all parameters together; use adamw, adam, sgd,",
        ),
        (
            {"optimizer": OptimizerConfig(name="muon", kernel="loop")},
            "this optimizer combines two; use adamw",
        ),
        ({"compile": "default"}, "compile is not supported with optimizer_in_backward; use compile: false"),
    ],
)
def test_what_needs_all_gradients_at_once_is_refused(strategy, changes, told):
    assert re.search(told, strategy.problem(decoder_case(strategy, 1, **changes), MACHINE) or "")
    assert strategy.problem(decoder_case(strategy, 1), MACHINE) is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"version": 1}, "set version: 2"),
        ({"mesh": {"tp": 2}}, "not supported with tp"),
        ({"cpu_offload": True}, "not supported with cpu_offload"),
    ],
)
def test_fsdp_has_it_where_it_was_tried(options, told):
    strategy = dataclasses.replace(FSDP, **options)
    assert told in (strategy.problem(decoder_case(strategy, 2), MACHINE) or "")


@pytest.mark.parametrize(
    ("strategy", "ranks", "gradients"),
    [(SINGLE, 1, 256 * 64 * 4), (FSDP, 1, BLOCK * 4), (FSDP, 2, BLOCK * 4 / 2)],
)
def test_of_gradients_one_tensor_is_there_at_once_or_one_layer(strategy, ranks, gradients):
    plain = dataclasses.replace(strategy, optimizer_in_backward=False)
    asked = decoder_case(strategy, ranks)
    usual = plain.model_states(asked, ALL_PARAMETERS)
    assert strategy.model_states(asked, ALL_PARAMETERS) == {**usual, "gradients": gradients}
    assert bytes_by_operation(strategy, asked, ALL_PARAMETERS) == bytes_by_operation(
        plain, asked, ALL_PARAMETERS
    )


def test_the_rest_beside_the_layers_may_be_the_largest_part():
    large = decoder_case(FSDP, 2, workload=PluginChoice("transformer", {**TINY, "vocab_size": 4096}))
    rest = 2 * 4096 * 64 + 64
    assert FSDP.model_states(large, 2 * BLOCK + rest)["gradients"] == rest * 4 / 2


def test_a_workload_that_does_not_say_its_shapes_has_no_theory():
    users = decoder_case(SINGLE, 1, workload=PluginChoice("user", {"model": "small:Small", "length": 32}))
    assert SINGLE.model_states(users, 1000) is None
    assert FSDP.model_states(users, 1000) is None


def test_no_format_says_how_it_is_done():
    asked = dataclasses.replace(
        decoder_case(FSDP, 2), strategy=PluginChoice("fsdp", {"optimizer_in_backward": True})
    )
    with pytest.raises(UsageError, match="no format can update parameters in the backward pass yet"):
        export_case("torch", asked, {})


CHECK_SUITE = f"""
workload: {{transformer: {{{", ".join(f"{key}: {value}" for key, value in TINY.items())}, tied: true}}}}
batch: {{global_batch_size: 8}}
launcher: {{kept: {{oversubscribe: true}}}}
"""


class UpdateRecorder:
    """Stands for an engine: one byte of gradients more before each update, and none after the last."""

    def __init__(self) -> None:
        self.gradients = 0

    def memory_by_kind(self) -> dict[str, int]:
        return {
            **dict.fromkeys(("parameters", "optimizer_state", "master", "host"), 8),
            "gradients": self.gradients,
        }


@pytest.mark.train
def test_the_moment_with_most_gradients_inside_of_the_backward_pass_has_a_row():
    from distbench.metrics.memory.phases import MemoryPhases

    engine = UpdateRecorder()
    phases = MemoryPhases(SimpleNamespace(engine=engine), None)
    with phases.around("forward"):
        pass
    with phases.around("backward"):
        for engine.gradients in (1, 3, 2, 0):
            with phases.around("optimizer"):
                pass
    with phases.around("optimizer"):
        pass
    assert [(row["phase"], row["gradients"]) for row in phases.rows] == [
        ("forward", 0),
        ("update", 3),
        ("backward", 0),
        ("step", 0),
    ]


@pytest.mark.train
def test_an_update_before_the_reduction_is_found(run_suite):
    done = run_suite(f"""{CHECK_SUITE}
optimizer: {{name: sgd, lr: 0.1, kernel: foreach}}
measure: {{trials: 0}}
check: {{steps: 2, perturbed: 4, fp64: false}}
world_sizes: [2]
strategies: [fsdp: {{optimizer_in_backward: true}}, planted_in_backward]
""")
    assert done.verdict_by_label == {"fsdp+in-backward": ROUNDING, "planted-in-backward": DIFFERS}


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(("precision", "recomputed"), [("fp32", "none"), ("bf16", "full")])
def test_adamw_and_sgd_resume_and_are_the_same_training(precision, recomputed, run_suite):
    done = run_suite(f"""{CHECK_SUITE}
precision: {precision}
activation_checkpointing: {recomputed}
axes:
  optimizer:
    - {{weight_decay: 0.1, schedule: linear, total_steps: 100, warmup_steps: 2}}
    - {{name: sgd, momentum: 0.9, lr: 0.1, kernel: foreach}}
measure: {{warmup: 1, steps: 1, trials: 1, profile_steps: 1}}
check: {{steps: 3}}
checkpoint: {{}}
world_sizes: [1, 2, 4]
strategies:
  - single: {{optimizer_in_backward: [false, true]}}
  - fsdp: {{optimizer_in_backward: true, sharding: [full, hybrid]}}
exclude:
  - {{strategy: "fsdp-hybrid*", world_size: 1}}
""")
    assert_same_training(done)
    assert {each["verdict"] for each in done.checkpoints} <= {"same", "rounding"}
    for file in done.folder.glob("trials/*in-backward*/0/record.json"):
        record = Finished.read(file)
        values, memory = record["values"], record["tables"]["memory"]
        assert record["effective"]["optimizer_in_backward"] is True
        assert record["effective"]["dtypes"]["gradients"] == "fp32"
        assert {row["phase"] for row in memory if row["gradients"]} == {"update", "theory"}
        # of a shard's padding
        assert values["memory_states"] == pytest.approx(values["memory_states_theory"], rel=0.01)
        assert values["profile_optimizer_s"] > 0
