"""torch.compile without a compiler: which layers are compiled, and what is told of one that is not."""

import pytest

from distbench.core.machine import Machine
from distbench.ipc.trial_files import RankError
from distbench.metrics.base import TrialData
from distbench.metrics.steptime import StepTime
from distbench.run.failure_reasons import RankFailure
from distbench.strategies.zero import Zero
from support.records import case


@pytest.mark.parametrize("recomputes", ["selective", "full"])
def test_layers_that_gather_and_recompute_are_not_compiled(recomputes):
    machine = Machine("cuda", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)

    def problem(stage: int, compile_: str, activation_checkpointing: str) -> str | None:
        asked = case("zero", compile=compile_, activation_checkpointing=activation_checkpointing)
        return Zero(stage=stage).problem(asked, machine)

    assert "compile would have no effect" in str(problem(3, "default", recomputes))
    assert problem(2, "default", recomputes) is problem(3, "none", recomputes) is None
    assert problem(3, "default", "none") is None


def test_a_layer_that_does_not_compile_is_told_by_the_compilers_own_words():
    said = "model.cpp:3:10: fatal error: omp.h: No such file or directory"
    message = f"CppCompileError: C++ compile error\n\nCommand:\ng++\n\nOutput:\n{said}\n\n\nSet TORCH_LOGS"
    error = RankError(1.0, "warmup 0", ["InductorError"], message)
    assert RankFailure(1, error.at, error.phase, error).reason == (
        f"rank 1 in warmup 0: InductorError: CppCompileError: {said}; give it a working C++ compiler, "
        "or use compile: false"
    )


def test_a_trial_that_compiles_in_its_window_is_not_compared():
    samples: dict[str, list[list[float | None]]] = {"compile_in_window_s": [[None], [2.5]]}
    said = StepTime().degraded_reason(TrialData(case("ddp"), 16, samples, {}))
    assert said == "torch.compile ran for 2.5 s inside the timed window; increase measure.warmup"
    assert StepTime().degraded_reason(TrialData(case("ddp"), 16, {}, {})) == ""
