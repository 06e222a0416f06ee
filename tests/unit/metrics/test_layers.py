"""Layers of a model: whose time an operation is, and what is shown of them."""

from dataclasses import replace

import pytest

from distbench.analysis.layers import LayerStep, layer_steps
from distbench.analysis.run import RunAnalysis
from distbench.metrics.profile.kineto import read_kineto
from distbench.metrics.profile.layer_times import layer_seconds
from distbench.views.layers import LayersView
from support.profiler_events import Events
from support.records import case, info, measured

MS = 1e-3
OUTSIDE = None


def seconds_of(events: Events, *steps: tuple[float, float]) -> dict[tuple[int | None, str], float]:
    """Milliseconds by layer and pass; nodes 10 to 19 belong to layer 1, 20 to 29 to layer 2, and so on."""
    found = layer_seconds(
        read_kineto(events.found),
        [(begin * MS, end * MS) for begin, end in steps or [(0.0, 100.0)]],
        lambda number: number // 10 if number >= 10 else None,
    )
    return {
        (owner.layer, "backward" if owner.in_backward else "forward"): round(of / MS, 3)
        for owner, of in found.items()
    }


def test_time_on_a_cpu_is_that_of_the_innermost_module_and_its_nodes():
    events = Events().mark("step", 0, 100).mark("forward", 0, 50).mark("backward", 50, 90)
    # module 1 calls module 2 in its middle; the loss is outside of both
    events.layer(1, 0, 40).op("aten::mm", 1, 39).layer(2, 10, 30).op("aten::mm", 10, 30)
    events.op("aten::nll_loss", 40, 50)
    events.node(25, 50, 60).op("aten::mm", 51, 60).node(12, 60, 80).op("aten::mm", 60, 80)
    # it accumulates a gradient, and has no number
    events.node(-1, 80, 83).op("aten::add_", 80, 83)
    events.mark("optimizer", 90, 100).op("aten::_fused_adamw_", 90, 100)
    assert seconds_of(events) == {
        (1, "forward"): 18,
        (2, "forward"): 20,
        (OUTSIDE, "forward"): 10,
        (2, "backward"): 9,
        (1, "backward"): 20,
        (OUTSIDE, "backward"): 3,
    }


def test_an_update_inside_the_backward_pass_is_of_no_layer():
    events = Events().mark("step", 0, 100).mark("backward", 0, 100).node(10, 0, 100).op("aten::mm", 0, 100)
    events.mark("optimizer", 40, 70)
    assert seconds_of(events) == {(1, "backward"): 70}


def test_what_is_recomputed_is_of_the_backward_pass_of_its_layer():
    events = Events().mark("step", 0, 100).mark("backward", 0, 100)
    events.node(10, 0, 60).layer(2, 5, 25).op("aten::mm", 0, 60)
    assert seconds_of(events) == {(1, "backward"): 40, (2, "backward"): 20}


def test_time_on_a_gpu_is_that_of_the_kernels_by_where_they_were_launched():
    events = Events().mark("step", 0, 100).mark("forward", 0, 10).mark("backward", 10, 20)
    events.layer(1, 0, 4).layer(2, 4, 8)
    events.kernel("gemm", 1, 10, 30).kernel("gemm", 5, 30, 35).copy("Memcpy DtoD", 6, 35, 36)
    # autograd has a thread of its own
    events.node(20, 11, 13, thread=2).kernel("gemm", 12, 40, 70).kernel("loss", 9, 36, 38)
    assert seconds_of(events) == {
        (1, "forward"): 20,
        (2, "forward"): 6,
        (OUTSIDE, "forward"): 2,
        (2, "backward"): 30,
    }


def test_time_is_the_mean_of_the_profiled_steps():
    events = Events()
    for begin, work in ((0, 10), (100, 30)):
        events.mark("step", begin, begin + 50).mark("forward", begin, begin + 50)
        events.layer(1, begin, begin + work).op("aten::mm", begin, begin + work)
    assert seconds_of(events, (0, 50), (100, 150)) == {(1, "forward"): 20}


def row(rank: int, layer: str | None, seconds: float, flops: float, size: float) -> dict[str, object]:
    return {
        "rank": rank,
        "layer": layer,
        "kind": "Linear" if layer else None,
        "modules": 4 if layer else None,
        "forward_s": seconds / 4,
        "backward_s": seconds * 3 / 4,
        "forward_flops": flops / 4,
        "backward_flops": flops * 3 / 4,
        "forward_bytes": size / 2,
        "backward_bytes": size / 2,
    }


def test_a_layer_is_that_of_its_slowest_rank_and_has_the_roof_of_its_intensity():
    rows = [row(0, "up", 0.3, 6e9, 1e8), row(0, None, 0.1, 0, 1e8), row(1, "up", 0.5, 6e9, 1e8)]
    first, second = layer_steps(replace(measured(case("ddp")), tables={"layers": rows}))
    assert first == LayerStep("up", "Linear", 4, 0.5, 1.0, 6e9, 1e8)
    assert (second.name, second.seconds, second.share) == ("outside of modules", 0.1, pytest.approx(0.25))
    assert first.intensity == 60
    # the two roofs meet at 50 and at 100 FLOPs per byte
    assert first.roof(5e11, 1e10) == "compute"
    assert first.roof(1e12, 1e10) == "memory"
    assert first.roof(None, 1e10) is None


def test_the_view_has_the_longest_layers_and_the_sum_of_the_others():
    one = case("ddp")
    rows = [row(0, f"layer{i}", 0.1 * (i + 1), 1e9, 1e8) for i in range(10)]
    record = replace(measured(one, matmul_flops=1e11, copy_bytes_per_s=1e10), tables={"layers": rows})
    table = LayersView().table(RunAnalysis(info(one), [record]))
    names = [each.value("layer") for each in table.rows]
    assert names == [*(f"layer{i}" for i in range(9, 1, -1)), "2 others"]
    assert sum(each.value("share") for each in table.rows) == pytest.approx(1)
    longest = table.rows[0]
    assert longest.value("flops_per_s") == pytest.approx(1e9)
    assert longest.value("bytes_per_s") == pytest.approx(1e8)
    assert (longest.value("intensity"), longest.value("roof")) == (10, "compute")
    unmeasured = replace(measured(one), tables={"layers": rows})
    cell = LayersView().table(RunAnalysis(info(one), [unmeasured])).rows[0].cells["roof"]
    assert cell.value is None
    assert "metrics.utilisation.measure_peak" in cell.reason


def test_a_run_without_layers_says_what_they_need():
    one = case("ddp")
    (note,) = LayersView().table(RunAnalysis(info(one), [measured(one)])).notes
    assert "measure.profile_steps" in note
