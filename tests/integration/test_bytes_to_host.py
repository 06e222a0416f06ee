"""What is inspected of a training stays on its device: what comes to the host is counted, byte by byte."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from distbench.core import registry
from support.emulation import emulated, laboratory

# norm and 16 sums in fp64, a digest of 64 bits
PRINT = 18 * 8


class Device:
    """Where gathered tensors seem to be: counts what is brought to the host, and how many live at once."""

    def __init__(self) -> None:
        import torch

        self.brought = self.alive = self.most = 0
        device = self

        class There(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                host = "cpu" in (str(arg) for arg in (*args[1:], *kwargs.values()))
                if function.__name__ in ("cpu", "tolist", "item", "numpy", "__float__", "__bool__") or host:
                    device.brought += args[0].numel() * args[0].element_size()
                return super().__torch_function__(function, types, args, kwargs)

        self._there = There

    def gathered(self, tensors: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """Copies of *tensors*, one after another, as an engine gathers them."""
        for name, tensor in tensors:
            whole = tensor.detach().clone().as_subclass(self._there)
            weakref.finalize(whole, self._ends)
            self.alive += 1
            self.most = max(self.most, self.alive)
            yield name, whole
            del whole

    def _ends(self) -> None:
        self.alive -= 1


@pytest.fixture
def training(tmp_path) -> Iterator[tuple[Any, Any, Device]]:
    """Setting and engine of a training in its first step, and the device that its tensors come from."""
    from distbench.strategies.base import RankContext
    from distbench.strategies.torch_engine.engine import TorchEngine
    from distbench.strategies.torch_engine.modules import load_plain_module
    from distbench.worker.batches import MicroBatchReader
    from distbench.workloads import weights

    device = Device()

    class Sharded(TorchEngine):
        def full_gradients(self) -> Iterator[tuple[str, Any]]:
            return device.gathered(super().full_gradients())

        def full_parameters(self) -> Iterator[tuple[str, Any]]:
            return device.gathered(super().full_parameters())

    import torch

    with laboratory(tmp_path):
        case = emulated("none")
        workload, file = registry.create_plugin("workloads", case.workload), tmp_path / "weights.safetensors"
        weights.save_initial(workload, case.seed, file, case.precision.compute)
        setting = RankContext(case, workload, file, torch.device("cpu"), 0, 1, tmp_path)
        engine = Sharded(setting, *load_plain_module(setting))
        for batch in MicroBatchReader(setting).micro_batches(0):
            engine.forward_backward(batch)
        yield setting, engine, device


def fingerprints(setting: Any, engine: Any) -> int:
    from distbench.worker.fingerprints import FingerprintRecorder
    from distbench.worker.trainer import TrainingStep

    watcher, step = FingerprintRecorder(setting), TrainingStep(0, [], [1.0])
    watcher.before_training("case", engine)
    watcher.before_update(step, engine)
    engine.step()
    watcher.after_update(step, engine, 0.0)
    return len(watcher.tensors) * PRINT


def gradients(setting: Any, engine: Any) -> int:
    from distbench.worker.health import TrainingHealth

    norm, broken = TrainingHealth(setting).check_gradients(0, engine)
    assert norm == pytest.approx(engine.grad_norm()) and not broken
    return 8 * sum(1 for _ in engine.module.parameters())


def replicas(setting: Any, engine: Any) -> int:
    from distbench.worker.health import TrainingHealth

    TrainingHealth(setting).check_replicas(0, engine)
    return 8 * sum(1 for _ in engine.module.parameters())


@pytest.mark.parametrize("inspected", [fingerprints, gradients, replicas])
def test_a_pass_brings_no_tensor_to_the_host_and_holds_one_at_a_time(inspected, training):
    setting, engine, device = training
    told = inspected(setting, engine)
    assert 0 < device.brought <= told < sum(p.numel() for p in engine.module.parameters())
    # the one that is looked at, and the next while it is gathered
    assert device.most <= 2
    assert device.alive == 0
