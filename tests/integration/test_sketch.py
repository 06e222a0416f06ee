"""Fingerprints of tensors: the same however a tensor lies in memory, and different where a bit is."""

import math
from typing import Any

import pytest

from distbench.ipc.trial_files import SKETCH_COLUMNS, fingerprint_version

# a few elements, one period of the signs, and several with a rest
SIZES = (3, 65_536, 200_003)


def random(size: int, dtype: Any = None) -> Any:
    import torch

    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype or torch.float32)


def described(tensor: Any) -> dict[str, Any]:
    from distbench.worker import sketch

    return sketch.sketch_tensors([("weight", tensor)])["weight"]


def length(row: dict[str, Any]) -> float:
    return math.hypot(*(row[name] for name in SKETCH_COLUMNS))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_fingerprint_has_the_norm_and_depends_on_the_values_alone(size, dtype):
    import torch

    tensor = random(size, getattr(torch, dtype))
    told = described(tensor)
    assert told["norm"] == pytest.approx(float(tensor.double().norm()), rel=1e-12)
    assert told == described(torch.stack([tensor, tensor], dim=1)[:, 0])
    assert fingerprint_version(told["digest"]) == "2"


def test_the_sketch_of_a_difference_is_the_difference_of_the_sketches():
    one, other = random(200_003), random(200_003).flip(0)
    apart, first, second = described((one - other).double()), described(one), described(other)
    for name in SKETCH_COLUMNS:
        assert apart[name] == pytest.approx(first[name] - second[name], abs=1e-3)


@pytest.mark.parametrize("periods", [1, 3])
def test_the_length_of_a_sketch_is_the_norm_on_average(periods):
    # one period again and again: signs that are alike in two of them would add up what should cancel
    ratios = []
    for seed in range(40):
        told = described(random(65_536 + seed)[:65_536].repeat(periods))
        ratios.append((length(told) / told["norm"]) ** 2)
    # the standard deviation of one is sqrt(2/16), of their mean 0.06
    assert 0.8 < sum(ratios) / len(ratios) < 1.2
    assert 0.1 < min(ratios) < max(ratios) < 3


@pytest.mark.parametrize("size", SIZES)
def test_a_single_bit_changes_the_digest(size):
    import torch

    tensor = random(size)
    digests = {described(tensor)["digest"]}
    for place in {0, size // 2, size - 1}:
        for bit in (1, 1 << 22, -(2**31)):
            changed = tensor.clone()
            changed.view(torch.int32)[place] ^= bit
            digests.add(described(changed)["digest"])
    assert len(digests) == 1 + 3 * 3
    # two signs that flip, two elements that change places, and one more zero
    flipped, swapped = tensor.clone(), tensor.clone()
    flipped[:2] *= -1
    swapped[0], swapped[-1] = tensor[-1], tensor[0]
    longer = torch.cat([tensor, torch.zeros(1)])
    digests |= {described(each)["digest"] for each in (flipped, swapped, longer)}
    assert len(digests) == 4 + 3 * 3


def test_hashes_are_those_of_the_published_finaliser():
    import torch

    from distbench.workloads.hashing import hash_counters

    def exact(word: int) -> int:
        word ^= word >> 16
        word = word * 0x85EBCA6B % 2**32
        word ^= word >> 13
        word = word * 0xC2B2AE35 % 2**32
        return word ^ word >> 16

    for first in (0, 2**31 - 2, 2**32 - 2):
        told = hash_counters(first, 4, torch.device("cpu")).tolist()
        assert [word % 2**32 for word in told] == [exact((first + i) % 2**32) for i in range(4)]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_complex_tensor_is_told_by_both_of_its_parts(dtype):
    import torch

    tensor = random(200, getattr(torch, dtype)) + 1j * random(200).flip(0)
    other = torch.complex(tensor.real, 2 * tensor.imag)
    one, two = described(tensor), described(other)
    assert one["norm"] == pytest.approx(float(torch.view_as_real(tensor).double().norm()), rel=1e-6)
    assert one["digest"] != two["digest"]
    apart = math.hypot(*(one[name] - two[name] for name in SKETCH_COLUMNS))
    assert apart == pytest.approx(float(tensor.imag.double().norm()), rel=0.8)
    assert described(tensor.conj()) == described(tensor.conj().resolve_conj())


def test_a_tensor_without_elements_has_a_fingerprint():
    told = described(random(0))
    assert told["norm"] == length(told) == 0
