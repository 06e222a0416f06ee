"""DeepSpeed's 1-bit optimizers: theory, refusals, the reduction over gloo, and real trainings."""

import dataclasses
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from distbench import plan
from distbench.adopt import export_case
from distbench.analysis.communication import collective_traffic, compare_volume
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.mesh_dimensions import call_count_mismatches
from distbench.core import registry
from distbench.core.case import Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.errors import SuiteError, UsageError
from distbench.core.machine import Machine
from distbench.jobs.equivalence.arms import DIFFERS
from distbench.strategies.onebit import OneBit
from distbench.strategies.onebit.theory import padded_elements
from distbench.strategies.zero import Zero
from distbench.suite import load_suite
from support.environments import older_deepspeed
from support.records import case, measured
from support.runs import PLUGINS
from support.suites import write_suite
from support.theory_checks import bytes_by_operation, measured_trials

OLDER = Machine("cpu", 8, {"torch": "2.13.0", "deepspeed": "0.19.6"}, has_libaio=False, has_compiler=True)
RANKS = 3


def onebit_case(ranks: int = 2, optimizer: str = "adamw", **options: Any) -> Case:
    """A case of the strategy with *options*."""
    strategy = OneBit(**options)
    asked = OptimizerConfig(name=optimizer, kernel="loop")
    return case(strategy.label, ranks, strategy=PluginChoice("onebit", options), optimizer=asked)


def test_a_buffer_is_padded_so_that_each_rank_has_whole_bytes_of_each_part():
    assert [padded_elements(elements, 2) for elements in (1, 16, 17)] == [16, 16, 32]
    # 3 ranks have 24 bits in common with bytes, and a part for each
    assert [padded_elements(72, 3), padded_elements(73, 3)] == [72, 144]
    assert padded_elements(65, 8) == 128


@pytest.mark.parametrize("ranks", [2, 4])
def test_bits_and_scales_move_for_each_tensor_or_of_lamb_for_all_at_once(ranks):
    one = onebit_case(ranks)
    shapes = registry.create_plugin("workloads", one.workload).tensor_shapes()
    tensors, elements = len(shapes), 1000
    adam = {each.op: each for each in OneBit().traffic(one, elements)}
    assert adam["all_to_all"].calls == tensors
    assert adam["all_gather"].calls == 3 * tensors
    assert adam["all_gather"].bytes - adam["all_to_all"].bytes == 2 * tensors * ranks * 4
    lamb = bytes_by_operation(
        OneBit(algorithm="lamb"), onebit_case(ranks, "lamb", algorithm="lamb"), elements
    )
    bits = padded_elements(elements, ranks) / 8
    assert lamb == {"all_to_all": bits, "all_gather": bits + 2 * ranks * 4}


def test_local_steps_move_the_same_less_often_and_settle_after_the_interval_has_doubled():
    options = {"algorithm": "zero_one_adam", "freeze_step": 5}
    often, seldom = OneBit(**options), OneBit(**options, local_steps=8)
    one = onebit_case(**options)
    assert {op: size / 8 for op, size in bytes_by_operation(often, one, 0).items()} == bytes_by_operation(
        seldom, one, 0
    )
    assert (often.steady_from_step, often.steps_per_cycle) == (5, 1)
    assert (seldom.steady_from_step, seldom.steps_per_cycle) == (8, 8)


def test_steps_without_any_collective_are_steps_of_the_mean():
    told = {"op": "all_to_all", "group": "0,1", "group_size": 2, "nodes": 1, "dtype": "uint8"}
    row = {"rank": 0, "step": 2, "place": 0, "bytes": 4000, **told}
    record = measured(onebit_case(), comm_bytes_theory=1000.0)
    theory = [{"rank": 0, "op": "all_to_all", "bytes": 1000.0}]
    samples = {**record.samples, "comm_calls": [[0.0, 0.0, 1.0, 0.0]]}
    record = dataclasses.replace(
        record, samples=samples, tables={"collectives": [row], "collectives_theory": theory}
    )
    found = compare_volume(record)
    assert found and (found.measured, found.unexplained_by_op) == ({"all_to_all": 1000.0}, {})
    (kind,) = collective_traffic(record)
    assert (kind.calls, kind.bytes) == (0.25, 1000.0)


@pytest.mark.parametrize(
    ("options", "changes", "why"),
    [
        ({}, {"world_size": 1}, "a single rank has nothing to reduce"),
        (
            {"algorithm": "lamb"},
            {},
            "algorithm = lamb compresses lamb.*adamw; use optimizer: {name: lamb}",
        ),
        (
            {},
            {"optimizer": OptimizerConfig(name="sgd")},
            "optimizer.name = sgd; use optimizer: {name: adamw}",
        ),
        ({}, {"precision": PrecisionConfig(compute="bf16")}, "only in fp32"),
        (
            {},
            {"optimizer": OptimizerConfig(clip_grad_norm=1.0)},
            "clip_grad_norm = 1: .*use clip_grad_norm: null",
        ),
        (
            {"local_steps": 4},
            {},
            "local_steps = 4 has no effect without algorithm: zero_one_adam; remove it",
        ),
        ({"var_update_scaler": 4}, {}, "var_update_scaler = 4 has no effect without"),
        ({"algorithm": "zero_one_adam", "local_steps": 6}, {}, "use 4 or 8"),
        ({}, {"device": "cuda"}, "cupy, which is not installed; pip install cupy-cuda12x"),
    ],
)
def test_what_can_not_be_trained_so_is_refused(options, changes, why):
    one = dataclasses.replace(onebit_case(**options), **changes)
    problem = OneBit(**options).problem(one, OLDER)
    assert problem and re.search(why, problem), problem


def test_the_version_that_is_installed_decides():
    newer = dataclasses.replace(OLDER, packages={**OLDER.packages, "deepspeed": "0.19.8"})
    assert OneBit().problem(onebit_case(), OLDER) is None
    told = OneBit().problem(onebit_case(), newer)
    assert told and "0.19.8 does not have 1-bit optimizers; 0.19.6 was the last version" in told


def test_its_optimizer_is_the_point_of_comparing_it_and_anybody_elses_is_other_work():
    for key in ("optimizer.class", "optimizer.kernel"):
        kinds = [each.description().settings[key].kind for each in (OneBit(), Zero())]
        assert kinds == ["strategy", "work"]


def test_no_step_before_the_compression_is_timed(tmp_path):
    suite = write_suite(
        tmp_path,
        "workload: transformer\nbatch: {global_batch_size: 8}\nworld_sizes: [2]\n"
        "measure: {warmup: 4}\nstrategies: [{onebit: {freeze_step: 9}}]\n",
    )
    with pytest.raises(SuiteError, match=r"changes its communication at step 9.*warm-up of 9 or more"):
        plan.make_plan(load_suite(suite), OLDER)
    suite.write_text(suite.read_text().replace("9", "1"))
    with pytest.raises(SuiteError, match=r"freeze_step.*must be at least 2"):
        plan.make_plan(load_suite(suite), OLDER)


def test_no_format_writes_it():
    with pytest.raises(
        UsageError, match="no format can express 1-bit optimizers, which only DeepSpeed up to"
    ):
        export_case("deepspeed", onebit_case(), {})


@pytest.mark.train
def test_what_ranks_reduce_is_the_mean_but_for_what_the_errors_have(tmp_path):
    started = multiprocessing.get_context("spawn")
    ranks = [started.Process(target=_reduce, args=(tmp_path, rank)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(100)
    assert [each.exitcode for each in ranks] == [0] * RANKS

    import torch

    for of_ranks in zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in range(RANKS)), strict=True):
        reduced, sent, before, after = (list(each) for each in zip(*of_ranks, strict=True))
        assert all(torch.equal(each, reduced[0]) for each in reduced)
        # each rank has the errors of its own part of what it sends back
        kept = (torch.cat(after) - torch.cat(before))[: reduced[0].numel()]
        assert torch.allclose(reduced[0] + kept, torch.stack(sent).mean(0), atol=1e-5)
        # a sign for each element, and one scale for each part
        assert len(reduced[0].abs().unique()) <= RANKS


def _reduce(folder: Path, rank: int) -> None:
    """Reduce four buffers of a rank; keep of each what came out, what was sent, and its errors then."""
    import torch
    import torch.distributed as dist

    from distbench.strategies.onebit.gloo import GlooBackend

    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS)
    draw, backend, steps = torch.Generator().manual_seed(rank), GlooBackend(), []
    buffer = torch.empty(10, 10)
    size = padded_elements(buffer.numel(), RANKS)
    worker, server = torch.zeros(size), torch.zeros(size // RANKS)
    for _ in range(4):
        exact = buffer.normal_(generator=draw).flatten() + worker[: buffer.numel()]
        before = server.clone()
        reduced = backend.compressed_allreduce(buffer, worker, server, rank).flatten().clone()
        steps.append((reduced, exact - worker[: buffer.numel()], before, server.clone()))
    torch.save(steps, folder / f"{rank}.pt")
    dist.barrier()
    sys.stderr.flush()
    # an interpreter that ends normally after gloo's teardown aborts now and then
    os._exit(0)


SUITE = """
workload: {{transformer: {{dim: 32, depth: 2, heads: 2, ffn_dim: 64, vocab_size: 256, seq_len: 16}}}}
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
launcher: {{local: {{oversubscribe: true}}}}
environments: {{older: {}}}
environment: older
check: {{steps: 4, perturbed: 4, fp64: false}}
"""


@pytest.mark.train
@pytest.mark.deep
def test_verdicts_bytes_and_memory_of_an_older_deepspeed(run_suite, tmp_path, monkeypatch):
    monkeypatch.setenv(registry.PLUGIN_PATH_VARIABLE, PLUGINS)
    older = older_deepspeed(tmp_path / "older")
    adam = run_suite(
        SUITE.format(older)
        + """
optimizer: {lr: 1.0e-4, weight_decay: 0.1, schedule: inverse_sqrt, warmup_steps: 2}
strategies:
  - onebit: {algorithm: [adam, zero_one_adam], freeze_step: 5}
  - onebit: {algorithm: zero_one_adam, freeze_step: 5, var_update_scaler: 2, local_steps: 4}
include:
  - {strategy: 1bit-adam+freeze5, world_size: 4}
world_sizes: [2]
measure: {warmup: 7, steps: 4, trials: 1, profile_steps: 1}
"""
    )
    lamb = run_suite(
        SUITE.format(older)
        + """
optimizer: {name: lamb, lr: 1.0e-3, weight_decay: 0.1}
strategies: [{onebit: {algorithm: lamb, freeze_step: 5}}]
world_sizes: [2, 4]
measure: {warmup: 7, steps: 4, trials: 1, profile_steps: 1}
"""
    )
    for done in (adam, lamb):
        assert done.code == 0, done.errors
        assert set(done.verdicts.values()) == {DIFFERENT_BY_DESIGN}
        for record in measured_trials(done.folder):
            moved, kept = compare_volume(record), largest_rank_memory(record)
            assert not call_count_mismatches(record), record.case.name
            assert moved and not moved.unexplained_by_op, record.case.name
            assert kept and abs(kept.difference) <= MODEL_STATE_TOLERANCE, record.case.name
    planted = run_suite(
        SUITE.format(older)
        + """
optimizer: {lr: 1.0e-4}
strategies: [planted_onebit: {bug: [none, alone, partly, doubled]}]
world_sizes: [2]
measure: {trials: 0}
"""
    )
    bugs = ("alone", "partly", "doubled")
    found = planted.found("planted-onebit")
    assert found == {"none": DIFFERENT_BY_DESIGN, **dict.fromkeys(bugs, DIFFERS)}
