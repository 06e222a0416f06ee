"""GPUs that ranks may use, through a fake of NVML, and commands on machines with a pretended one."""

from pathlib import Path

import pytest

from distbench.metrics.telemetry.fake_nvml import (
    FakeGpu,
    FakeNvml,
    NVMLError_DriverNotLoaded,
    NVMLError_LibraryNotFound,
)
from distbench.system.visible_gpus import VisibleGpus, find_visible_gpus
from support.runs import call_outside
from support.suites import write_suite

GIB = 1 << 30
H100 = FakeGpu(uuid="GPU-aa11")
DISPLAY = FakeGpu("NVIDIA GeForce GT 1030", "GPU-aa22", memory_total=2 * GIB, capability=(6, 1))
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def sizes(*gpus: FakeGpu, **variables: str) -> tuple[int, tuple[int, ...], tuple[float, ...]]:
    """Number, GiB and compute capabilities of the visible ones of *gpus*."""
    found = find_visible_gpus(FakeNvml(*gpus), variables)
    assert not found.error
    return found.count, tuple(size // GIB for size in found.memory), found.capabilities


def test_only_gpus_that_cuda_shows_are_counted_and_asked():
    assert sizes(H100, DISPLAY) == (2, (80, 2), (9.0, 6.1))
    assert sizes(H100, DISPLAY, **BY_BUS, CUDA_VISIBLE_DEVICES="0") == (1, (80,), (9.0,))
    assert sizes(H100, DISPLAY, **BY_BUS, CUDA_VISIBLE_DEVICES=" 1 , 0 ") == (2, (2, 80), (6.1, 9.0))
    assert sizes(H100, DISPLAY, CUDA_VISIBLE_DEVICES="GPU-aa11") == (1, (80,), (9.0,))
    assert sizes(H100, DISPLAY, CUDA_VISIBLE_DEVICES="GPU-aa2") == (1, (2,), (6.1,))


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("-1", 0), ("0,7,1", 1), ("GPU-a", 0), ("0,GPU-b", 1)]
)
def test_the_list_ends_where_cuda_ends_it(visible, count):
    assert sizes(H100, DISPLAY, **BY_BUS, CUDA_VISIBLE_DEVICES=visible)[0] == count


def test_a_number_by_speed_means_no_known_one_of_different_gpus():
    found = find_visible_gpus(FakeNvml(DISPLAY, H100), {"CUDA_VISIBLE_DEVICES": "0"})
    assert (found.count, found.memory, found.capabilities) == (1, (), ())
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.unknown
    assert sizes(H100, H100, CUDA_VISIBLE_DEVICES="1") == (1, (80,), (9.0,)), "they are alike"
    assert sizes(DISPLAY, H100, CUDA_VISIBLE_DEVICES="0,1") == (2, (2, 80), (6.1, 9.0)), "all are visible"


@pytest.mark.parametrize(
    ("gpu", "variables", "count"),
    [
        (H100, {"CUDA_VISIBLE_DEVICES": "MIG-11,MIG-22"}, 2),
        (H100, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aa11/1/0"}, 1),
        (FakeGpu(mig=True), {}, 1),
    ],
)
def test_sizes_of_mig_instances_are_unknown(gpu, variables, count):
    found = find_visible_gpus(FakeNvml(gpu), variables)
    assert (found.count, found.memory, found.capabilities) == (count, (), ())
    assert "MIG" in found.unknown


def test_a_gpu_with_the_memory_of_its_host_has_a_capability():
    found = find_visible_gpus(FakeNvml(FakeGpu("NVIDIA GB10", memory_total=None, capability=(12, 1))), {})
    assert (found.memory, found.capabilities, found.unknown) == ((), (12.1,), "NVML: Not Supported")


def test_only_a_missing_driver_means_that_there_is_no_gpu():
    for error in (NVMLError_LibraryNotFound("Not Found"), NVMLError_DriverNotLoaded("Not Loaded")):
        assert find_visible_gpus(FakeNvml(init_error=error), {}) == VisibleGpus()
    mismatch = "Driver/library version mismatch"
    assert find_visible_gpus(FakeNvml(init_error=mismatch), {}).error == f"NVML: {mismatch}"
    assert find_visible_gpus(FakeNvml(H100, FakeGpu(lost=True)), {}).error == "NVML: GPU 1: GPU is lost"


SUITE = """
workload: mlp
data: synthetic
batch: {global_batch_size: 8}
world_sizes: [1]
precision: bf16
strategies: [ddp]
"""
PYNVML = """
from distbench.metrics.telemetry import fake_nvml
from distbench.metrics.telemetry.fake_nvml import FakeGpu

_fake = fake_nvml.FakeNvml({gpus})
globals().update({{name: getattr(_fake, name) for name in dir(_fake) if name[:4].lower() == "nvml"}})
NVMLError = fake_nvml.NVMLError
"""


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Pretend a machine with GPUs for commands in processes of their own; return a suite for it."""

    def on(gpus: str) -> str:
        (tmp_path / "pynvml.py").write_text(PYNVML.format(gpus=gpus))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
        return str(write_suite(tmp_path, SUITE))

    return on


TWO = 'FakeGpu(), FakeGpu("GT 1030", capability=(6, 1), memory_total=2 << 30)'


@pytest.mark.train
def test_a_card_for_a_display_that_no_rank_may_use_refuses_nothing(pretended):
    suite = pretended(TWO)
    both = call_outside("plan", suite)
    assert "this machine has 6.1" in both.stdout + both.stderr
    one = call_outside("plan", suite, **BY_BUS, CUDA_VISIBLE_DEVICES="0")
    assert one.returncode == 0
    assert "planned" in one.stdout and "6.1" not in one.stdout + one.stderr


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_lost_gpu_is_no_reason_to_train_on_the_cpu(pretended, device):
    done = call_outside("plan", pretended("FakeGpu(), FakeGpu(lost=True)"), "--device", device)
    assert done.returncode == 4
    assert "NVML: GPU 1: GPU is lost; see what nvidia-smi says, or use device: cpu" in done.stderr


@pytest.mark.train
def test_the_cpu_of_a_machine_with_a_lost_gpu_can_be_used(pretended):
    done = call_outside("plan", pretended("FakeGpu(lost=True)"), "--device", "cpu")
    assert (done.returncode, "planned" in done.stdout) == (0, True)


def test_the_doctor_names_the_error_of_the_driver(pretended, tmp_path):
    pretended('init_error="Driver/library version mismatch"')
    done = call_outside("doctor", "--out", str(tmp_path / "runs"))
    assert done.returncode == 4
    assert "NVML: Driver/library version mismatch; see what nvidia-smi says" in done.stderr


@pytest.mark.train
def test_a_torch_without_cuda_is_named_on_a_machine_with_gpus(pretended, tmp_path):
    suite = pretended("FakeGpu()")
    done = call_outside("run", suite, "--out", str(tmp_path / "runs"))
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "is built without CUDA; install a build with CUDA" in said
    assert "AttributeError" not in said
    examined = call_outside("doctor", "--out", str(tmp_path / "runs"))
    assert "is built without CUDA -> install a build with CUDA" in " ".join(examined.stdout.split())
    assert "firewall" not in examined.stdout
