"""File format of the initial weights: rules that draw tensors, stored tensors, perturbations.

It is a safetensors file with the rules in its metadata. A file without rules, such as other tools write,
stores all tensors. A file of perturbed weights has only the perturbation and the path of another file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from distbench.core.dtypes import TORCH_DTYPE_NAMES
from distbench.core.serialization import decode
from distbench.system.files import atomic_path
from distbench.workloads._draws import draw_chunks, philox_key
from distbench.workloads._initialisation import InitRecorder
from distbench.workloads._perturbed_init import PERTURB_CHUNK, Perturbation, perturb

# no name of a parameter begins with a dot: dots separate Python attributes
_LEVELS, _BUFFERS = ".levels", ".buffers"
# a single entry of the metadata, as safetensors writes several in any order
_RULES, _PERTURBED = "drawn", "moved"

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, known) for name, known in TORCH_DTYPE_NAMES.items()}
"""Our names -> torch's dtypes."""


@dataclass(frozen=True)
class TensorRule:
    """Rule that draws a tensor that is not stored."""

    shape: list[int]
    seed: int
    levels: str = ""
    """Name in the file of the quantiles (65536,) of its distribution; empty: all are ``constant``."""
    constant: float = 0.0


class WeightFile:
    """The initial weights in an open file."""

    def __init__(self, file: Path, stored: Any) -> None:
        self._file, self._stored = file, stored
        rules = json.loads((stored.metadata() or {}).get(_RULES, "{}"))
        self._buffers = set(rules.pop(_BUFFERS, []))
        self._rules = {name: decode(TensorRule, rule, f"{file}: {name}") for name, rule in rules.items()}
        self._quantiles: dict[str, Any] = {}

    @property
    def names(self) -> set[str]:
        """Plain names of all tensors."""
        return {*self._rules, *(name for name in self._stored.keys() if not name.startswith(_LEVELS))}  # noqa: SIM118 - no mapping

    def shape(self, name: str) -> list[int]:
        """Shape of the tensor *name*."""
        if rule := self._rules.get(name):
            return rule.shape
        shape: list[int] = self._stored.get_slice(name).get_shape()
        return shape

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor *name* on the CPU: drawn in fp32, or memory-mapped as it is stored."""
        if name not in self._rules:
            stored: torch.Tensor = self._stored.get_tensor(name)
            return stored
        made = torch.empty(self.shape(name))
        self.fill(made.view(-1), name)
        return made

    def fill(self, target: torch.Tensor, name: str, start: int = 0) -> None:
        """Copy the elements of *name*, flattened, from *start* on into *target* (elements,)."""
        place = 0
        for part in self.chunks(name, start, start + target.numel()):
            target[place : place + part.numel()].copy_(part)
            place += part.numel()

    def chunks(self, name: str, start: int, stop: int) -> Iterator[torch.Tensor]:
        """Yield the elements *start* to *stop* of *name*, flattened, in chunks (n,), on the CPU."""
        rule = self._rules.get(name)
        if rule is None:
            yield self._stored.get_tensor(name).view(-1)[start:stop]
        elif rule.levels:
            yield from draw_chunks(
                self._load_quantiles(rule.levels), philox_key(rule.seed, name), start, stop
            )
        else:
            yield torch.full((1,), rule.constant).expand(stop - start)

    def _load_quantiles(self, name: str) -> Any:
        if name not in self._quantiles:
            self._quantiles[name] = self._stored.get_tensor(name).numpy()
        return self._quantiles[name]


class PerturbedWeightFile(WeightFile):
    """Initial weights of *file* with a *perturbation*; not of buffers, as masks are compared with numbers."""

    def __init__(self, file: Path, stored: Any, perturbation: Perturbation) -> None:
        super().__init__(file, stored)
        self._perturbation = perturbation

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor *name* on the CPU, in the dtype in which it is drawn or stored."""
        (first,) = (part.dtype for part in self.chunks(name, 0, 1))
        made = torch.empty(self.shape(name), dtype=first)
        self.fill(made.view(-1), name)
        return made

    def chunks(self, name: str, start: int, stop: int) -> Iterator[torch.Tensor]:
        if name in self._buffers:
            yield from super().chunks(name, start, stop)
            return
        for whole_part in super().chunks(name, start, stop):
            for part in whole_part.split(PERTURB_CHUNK):
                yield perturb(part, self._perturbation, name, start, DTYPES[self._perturbation.compute_dtype])
                start += part.numel()


@contextmanager
def open_weights(file: Path) -> Iterator[WeightFile]:
    """Open the initial weights in *file*."""
    with ExitStack() as opening:
        stored = opening.enter_context(safe_open(file, framework="pt"))
        made = (stored.metadata() or {}).get(_PERTURBED)
        if made is None:
            yield WeightFile(file, stored)
            return
        move = decode(Perturbation, json.loads(made), str(file))
        of = Path(move.base_file)
        yield PerturbedWeightFile(of, opening.enter_context(safe_open(of, framework="pt")), move)


def write_perturbation(file: Path, perturbation: Perturbation) -> None:
    """Write a *file* of perturbed weights that refers to another weight file."""
    with atomic_path(file) as aside:
        save_file({}, aside, {_PERTURBED: json.dumps(asdict(perturbation))})


def write_weights(
    file: Path, tensors: Mapping[str, torch.Tensor], recorder: InitRecorder, seed: int, compute_dtype: str
) -> None:
    """Write the rules of the *tensors* that *recorder* knows, and the other tensors themselves.

    Floating-point parameters are rounded through the dtype *compute_dtype*, and kept as fp32.
    """
    owners = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    rules: dict[str, TensorRule] = {}
    kept: dict[str, torch.Tensor] = {}
    names_of: dict[bytes, str] = {}
    for name, tensor in tensors.items():
        is_rounded = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        is_own = owners[tensor.untyped_storage().data_ptr()] == 1
        levels = recorder.quantiles(tensor) if is_rounded and is_own else None
        if levels is not None:
            levels = _round_through(levels, compute_dtype)
            rules[name] = TensorRule(list(tensor.shape), seed, *_distribution(levels, names_of, kept))
            continue
        recorder.materialise(tensor)
        if is_rounded:
            # in place, so that a large module is never in memory twice
            tensor.data = _round_through(tensor.data, compute_dtype)
        kept[name] = tensor.detach()
    buffers = [name for name, tensor in tensors.items() if not isinstance(tensor, nn.Parameter)]
    plain = {name: asdict(rule) for name, rule in rules.items()} | {_BUFFERS: buffers}
    with atomic_path(file) as aside:
        save_file(unshared(kept), aside, {_RULES: json.dumps(plain)})


def unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each in its own memory, as safetensors requires."""
    taken: set[int] = set()
    copies = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        copies[name] = tensor.contiguous() if place not in taken else tensor.clone().contiguous()
        taken.add(place)
    return copies


def _distribution(
    levels: torch.Tensor, names: dict[bytes, str], kept: dict[str, torch.Tensor]
) -> tuple[str, float]:
    """Name of the *levels* in *kept* (equal ones share a name), or their constant."""
    first = levels[0]
    if torch.equal(levels, first.expand_as(levels)):
        return "", first.item()
    name = names.setdefault(levels.numpy().tobytes(), f"{_LEVELS}.{len(names)}")
    kept[name] = levels
    return name, 0.0


def _round_through(tensor: torch.Tensor, compute_dtype: str) -> torch.Tensor:
    return tensor.to(DTYPES[compute_dtype]).float()
