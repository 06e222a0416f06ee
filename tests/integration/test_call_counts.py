"""Calls, bytes and meetings of real engines: what theory says before a run is what the run counts."""

from collections import Counter

import pytest

from distbench.analysis.communication import compare_volume
from distbench.analysis.mesh_dimensions import call_count_mismatches, dimension_traffic
from distbench.core import registry
from distbench.prediction.probed_rates import ProbedRates, probed_rates
from distbench.prediction.recorded_layouts import with_model_layout
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.strategies.base import Strategy
from distbench.workloads.base import workload_of
from distbench.workloads.layouts import ModelLayout
from support.runs import Finished
from support.suites import SuiteText
from support.theory_checks import expected_meetings, meeting_mismatch

# the hidden layer and the vocabulary are odd, so that shards are padded
SUITE = SuiteText("""
workload:
  transformer: {dim: 136, depth: 3, heads: 4, kv_heads: 4, ffn_dim: 257, vocab_size: 1001, seq_len: 32}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
measure: {warmup: 2, steps: 2, trials: 1, profile_steps: 0}
metrics: [communication, memory]
world_sizes: [2]
strategies:
  - ddp: {bucket_cap_mb: [25, 0.4], sharded_optimizer: [false, true]}
  - ddp: {bucket_cap_mb: 0.4, find_unused_parameters: true}
  - fsdp: {sharding: [full, grad_op]}
  - fsdp: {version: 1, sharding: [full, grad_op], reduce_each_micro_batch: [true, false]}
  - fsdp: {reshard_root: true, layers_per_unit: 2, reduce_each_micro_batch: false}
  - zero: {stage: [0, 1, 2, 3]}
  - zero: {stage: [1, 2, 3], reduce_bucket_size: 60000}
  - zero: {stage: 1, overlap_comm: true, offload_optimizer: cpu}
  - zero: {stage: 2, contiguous_gradients: false, reduce_bucket_size: 60000}
  - cp
  - cp: {sharded: true}
""")
OTHERS = "strategies:" + str(SUITE).partition("strategies:")[2]
SOME = """strategies:
  - ddp: {bucket_cap_mb: 0.4, sharded_optimizer: true}
  - ddp: {bucket_cap_mb: 0.4, find_unused_parameters: true}
  - fsdp: {sharding: [full, grad_op]}
  - fsdp: {version: 1}
  - zero: {stage: [0, 1, 3]}
  - zero: {stage: 2, reduce_bucket_size: 60000}
  - cp: {sharded: true}
"""
PREFETCHED = """strategies:
  - zero:
      stage: 3
      param_persistence_threshold: 1000
      max_reuse_distance: [0, 200000]
      max_live_parameters: [400000, 10000000]
      prefetch_bucket_size: [0, 300000]
"""
SPLIT = """strategies:
  - fsdp: {sharding: hybrid}
  - fsdp: {version: 1, sharding: hybrid}
  - zero: {stage: [1, 2, 3], reduce_bucket_size: 60000}
  - cp: {mesh: {cp: 2}}
  - cp: {mesh: {cp: 2}, sharded: true}
"""
EVEN = """strategies:
  - tp: {sequence_parallel: [false, true], loss_parallel: [false, true]}
"""
WITHOUT_MEETINGS = {"ddp+0.4mb+unused"}
"""Labels of cases of which theory does not say how often ranks meet."""


def assert_exact(done: Finished) -> list[Record]:
    """Theory names each call, byte and meeting of the trials but for norms and flags; return the trials."""
    assert done.code == 0, done.errors
    found = [record for record in Run(done.folder).records() if record.case.world_size > 1]
    for record in found:
        name, volume = record.case.name, compare_volume(record)
        assert volume is not None
        assert volume.unexplained_by_op == {}, name
        assert all("norms and flags" in cause.text or not cause.bytes for cause in volume.causes), name
        assert call_count_mismatches(record) == meeting_mismatch(record) == "", name
        counted = [each for each in dimension_traffic(record) if each.theory]
        assert counted, name
        assert all(each.calls_theory is not None for each in counted), name
        assert (expected_meetings(record) is None) == (record.case.label in WITHOUT_MEETINGS), name
    return found


def test_each_call_and_byte_of_two_ranks_is_foreseen(run_suite):
    found = assert_exact(run_suite(str(SUITE.replace(OTHERS, SOME))))
    calls = {each.case.name: each.values["comm_calls"] for each in found}
    assert len(set(calls.values())) > 5, "strategies differ, so that agreeing means something"


@pytest.mark.deep
def test_each_call_and_byte_of_more_options_is_foreseen(run_suite):
    found = assert_exact(run_suite(str(SUITE)))
    assert len({each.values["comm_calls"] for each in found}) > 8


def test_each_call_inside_layers_is_foreseen(run_suite):
    text = SUITE.replace(OTHERS, EVEN).replace("257", "256").replace("1001", "1002")
    assert_exact(run_suite(str(text)))


@pytest.mark.deep
def test_recomputation_and_16_bits_change_the_calls_as_foreseen(run_suite):
    assert_exact(run_suite(f"{SUITE}activation_checkpointing: full\nprecision: bf16\n"))


@pytest.mark.deep
@pytest.mark.parametrize("recomputed", ["none", "full"])
def test_stage_3_gathers_what_its_sizes_make_it_gather(recomputed, run_suite):
    text = SUITE.replace(OTHERS, PREFETCHED)
    found = assert_exact(run_suite(f"{text}activation_checkpointing: {recomputed}\n"))
    assert len({each.values["comm_bytes"] for each in found}) > 3


@pytest.mark.deep
def test_meshes_of_four_ranks_are_foreseen_as_well(run_suite):
    text = SUITE.replace(OTHERS, SPLIT).replace("world_sizes: [2]", "world_sizes: [4]")
    assert_exact(run_suite(f"{text}launcher: {{kept: {{oversubscribe: true}}}}\n"))


OF_TRANSFORMERS = """
workload:
  huggingface:
    model_type: gpt2
    seq_len: 32
    config: {n_embd: 64, n_layer: 3, n_head: 4}
batch: {global_batch_size: 8, gradient_accumulation_steps: 2}
measure: {warmup: 2, steps: 2, trials: 1, profile_steps: 0}
metrics: [communication]
world_sizes: [2]
strategies:
  - ddp: {bucket_cap_mb: [25, 0.2]}
  - fsdp: {sharding: [full, grad_op]}
  - zero: {stage: [1, 2, 3]}
probe: {seconds: 2}
"""


@pytest.mark.deep
def test_calls_of_a_model_that_the_ranks_of_a_probe_read_are_foreseen(run_suite):
    """Of a model without formulas."""
    done = run_suite(OF_TRANSFORMERS)
    assert done.code == 0, done.errors
    records = [*Run(done.folder).records()]
    trials = [each for each in records if each.job.kind == "measure"]
    assert len(trials) == 7
    for trial in trials:
        rates = probed_rates(trial.case, records)
        assert isinstance(rates, ProbedRates)
        assert isinstance(rates.layout, ModelLayout)
        known = with_model_layout(trial.case, rates.layout)
        strategy: Strategy = registry.create_plugin("strategies", known.strategy)
        expected = Counter[str]()
        for each in strategy.traffic(known, workload_of(known).parameters() or 0) or ():
            expected[each.issued_as or each.op] += each.calls or 0
        # norms and flags have a few bytes
        first = [row for row in trial.tables["collectives"] if row["rank"] == row["step"] == 0]
        moved = [row for row in first if row["bytes"] > 64]
        assert expected == Counter(row["op"] for row in moved), trial.case.name
        assert expected.total() > 0
