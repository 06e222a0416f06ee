"""Torch's device meshes, by the sizes of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def init_mesh(sizes: Mapping[str, int], device: torch.device) -> DeviceMesh:
    """The mesh of all ranks with dimensions of these *sizes*, outermost first. Collective call."""
    # a mesh reads the values of its tensors, which fake ones don't have
    with unset_fake_temporarily():
        return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def mesh_sizes(mesh: DeviceMesh) -> dict[str, int]:
    """Number of ranks of each dimension of *mesh*, by name."""
    return dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True))
