"""Models that can't be sharded as they are declared or constructed: shared parameters, late tensors."""

import pytest

from distbench.analysis.communication import collective_traffic
from distbench.analysis.mesh_dimensions import call_count_mismatches
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.record.run_folder import Run

SMALL = """
batch: {global_batch_size: 8}
world_sizes: [2]
measure: {warmup: 1, steps: 1, trials: 1, profile_steps: 0}
check: {steps: 2, perturbed: 4, fp64: false}
"""
MODEL = f"""{SMALL}
workload: {{user: {{model: "odd:TiedLayers", length: 16}}}}
"""
TIED = f"""{MODEL}
strategies: [fsdp: {{version: [1, 2]}}, zero: {{stage: 3}}]
activation_checkpointing: full
"""
GRID = f"""{MODEL}
strategies:
  - fsdp: {{version: [1, 2], sharding: [full, grad_op]}}
  - fsdp: {{reshard_root: true}}
  - zero: {{stage: 3}}
axes: {{precision: [fp32, bf16], activation_checkpointing: [none, full]}}
"""
GROUPED = f"""{SMALL.replace("profile_steps: 0", "profile_steps: 1")}
workload: {{transformer: {{dim: 32, depth: 5, heads: 2, ffn_dim: 64, seq_len: 32}}}}
data: synthetic
strategies:
  - fsdp: {{layers_per_unit: 2}}
  - fsdp: {{layers_per_unit: 3, forward_prefetch: 1, backward_prefetch: 1}}
"""
LATER = f"""{SMALL}
workload: {{user: {{model: "odd:MadeLater", length: 16}}}}
strategies: [zero: {{stage: 3}}]
"""


def test_layers_that_share_a_parameter_are_sharded_with_the_rest_and_the_record_says_so(run_suite):
    done = run_suite(TIED)
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 3
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    told = {r.case.label: r.effective for r in Run(done.folder).records() if r.job.kind == "measure"}
    assert set(told) == {"fsdp1", "fsdp", "zero3"}
    for label in ("fsdp1", "fsdp"):
        assert told[label]["merged_units"] == ["layers.0", "layers.1", "layers.2"]
        assert told[label]["units"] == 2, "the last layer and the rest"
        assert told[label]["checkpointed_layers"] == 4
        assert any("layers that share a parameter (" in remark for remark in told[label]["remarks"])


@pytest.mark.deep
def test_sharing_layers_train_alike_in_every_way_of_sharding(run_suite):
    done = run_suite(GRID)
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 6 * 4
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    records = [r for r in Run(done.folder).records() if r.job.kind == "measure" and "fsdp" in r.case.label]
    found = {(r.case.label, tuple(r.effective["merged_units"]), r.effective["units"]) for r in records}
    assert {names for _, names, _ in found} == {("layers.0", "layers.1", "layers.2")}
    assert {units for *_, units in found} == {2}


def test_several_layers_are_one_unit_and_prefetched_as_asked(run_suite):
    done = run_suite(GROUPED)
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    measured = {
        record.effective["layers_per_unit"]: record
        for record in Run(done.folder).records()
        if record.job.kind == "measure" and record.effective
    }
    # five layers make units of 2, 2 and 1, or of 3 and 2; the rest is one more, and is gathered once
    for size, units, ahead in ((2, 4, 0), (3, 3, 1)):
        effective = measured[size].effective
        assert effective["units"] == units
        assert [effective[f"{way}_prefetch"] for way in ("forward", "backward")] == [ahead, ahead]
        calls = {each.op: each.calls for each in collective_traffic(measured[size])}
        assert calls == {"all_gather": 2 * units - 1, "reduce_scatter": units}
        assert call_count_mismatches(measured[size]) == ""


def test_zero_3_shards_what_a_constructor_makes_of_tensors_that_exist(run_suite):
    done = run_suite(LATER)
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 1
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    (record,) = (r for r in Run(done.folder).records() if r.job.kind == "measure")
    assert record.effective["trained_parameters"] < record.effective["parameters"]
    assert "constructs the whole model in host memory" in record.effective["remarks"][0]
