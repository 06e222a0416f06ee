"""Models of which only a part is trained: what moves, what is kept, and what theory says of both."""

import pytest

from distbench.record.run_folder import Run
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.theory.expected_traffic import traffic_as_built
from distbench.strategies.zero import Zero
from support.records import case
from support.runs import Finished, run_in
from support.suites import SuiteText
from support.theory_checks import against_theory

ADAPTED = SuiteText("""
workload: {user: {model: "odd:Adapted", length: 16}}
batch: {global_batch_size: 8}
world_sizes: [2]
strategies:
  - single
  - ddp: {sharded_optimizer: [false, true]}
  - fsdp: {version: [1, 2]}
  - zero: {stage: [1, 3]}
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
""")
LAYER, ADAPTERS = 2 * 16 * 32 + 32 + 16 + 256, 2 * 256
WHOLE = 256 * 16 + 2 * LAYER + 256 * 16 + 256
TOLD = {"parameters": WHOLE, "trained_parameters": ADAPTERS}
"""Settings of an engine of the model."""


def moved(strategy: DistributedDataParallel | FullyShardedDataParallel | Zero) -> dict[str, float]:
    """Bytes that *strategy* moves in a step of the model by theory, by operation."""
    theory = traffic_as_built(strategy, case("ddp"), TOLD)
    assert theory is not None
    return {each.op: each.bytes for each in theory}


def test_what_is_reduced_is_what_is_trained():
    assert moved(DistributedDataParallel()) == {"all_reduce": 4 * ADAPTERS}
    shards = {"all_gather": 2 * 4 * WHOLE, "reduce_scatter": 4 * ADAPTERS}
    assert moved(FullyShardedDataParallel()) == moved(Zero(stage=3)) == shards
    # of what each rank has whole, only what was updated is gathered
    assert moved(Zero(stage=2)) == {"all_gather": 4 * ADAPTERS, "reduce_scatter": 4 * ADAPTERS}


def test_of_frozen_parameters_the_parameters_alone_are_kept():
    states = FullyShardedDataParallel().model_states_as_built(case("fsdp"), WHOLE, TOLD)
    assert states == {
        "parameters": 4 * WHOLE / 2,
        "gradients": 4 * ADAPTERS / 2,
        "optimizer_state": 8 * ADAPTERS / 2,
        "master": 0,
    }


@pytest.mark.parametrize(
    "strategy",
    [FullyShardedDataParallel(mesh={"tp": 2}), Zero(stage=1, mesh={"tp": 2}), Zero(offload_optimizer="cpu")],
)
def test_where_nobody_knows_which_tensors_are_frozen_there_is_no_theory(strategy):
    assert strategy.operations_on_frozen is None


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Finished:
    """A run of the model."""
    done = run_in(tmp_path_factory.mktemp("adapted"), ADAPTED)
    assert done.code == 0, done.errors
    return done


@pytest.mark.train
def test_steps_move_and_keep_what_theory_says(finished):
    unexplained = against_theory(finished.folder)
    assert unexplained == dict.fromkeys(unexplained, "")
    records = {record.case.label: record for record in Run(finished.folder).records()}
    assert set(records) == {"single", "ddp", "ddp+zero1", "fsdp1", "fsdp", "zero1", "zero3"}
    for label, record in records.items():
        told = record.effective
        assert (told["parameters"], told["trained_parameters"]) == (WHOLE, ADAPTERS), label
        assert {"comm_bytes_theory", "memory_states_theory"} <= set(record.values), record.absent
    assert records["ddp"].values["comm_bytes"] == 4 * ADAPTERS


@pytest.mark.train
def test_a_rank_with_nothing_that_is_trained_tells_the_settings_of_one_that_has(finished):
    told = finished.record("fsdp1")["effective"]
    assert told["dtypes"]["optimizer_state"] == told["dtypes"]["gradients"] == "fp32"
    assert told["optimizer"]["steps"] == finished.record("single")["effective"]["optimizer"]["steps"]
    assert told["optimizer_state_on"] == "cpu"
    assert told["reduced_parameters"] == 2 * LAYER, "of a unit with an adapter all is reduced"


@pytest.mark.train
def test_a_model_of_two_dtypes_is_refused_with_the_names_and_never_cast(run_suite):
    done = run_suite(ADAPTED.replace("odd:Adapted", "odd:TwoDtypes"))
    assert done.code == 3, done.errors
    assert len(done.cases) == 7
    for name, found in done.cases.items():
        assert found["status"] == "unsupported", name
        assert found["reason"] == (
            "the model has parameters of 2 dtypes: 3 in fp32 (embedding.weight, head.weight, ...), 8 "
            "in bf16 (layers.0.up.weight, layers.0.up.bias, ...); distbench keeps all parameters in "
            "precision.master, which would change the model; construct all parameters in one dtype"
        )
        assert not list(done.folder.glob("trials/*/*/rank0.log")), "before anything is launched"
