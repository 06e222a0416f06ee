"""Engine whose gradients Horovod reduces, in the worker."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import horovod.torch as hvd
import torch
import torch.distributed as dist
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
from torch import nn

from distbench.core.errors import Mismatch
from distbench.strategies.base import RankContext, UnsupportedCase
from distbench.strategies.torch_engine import modules, readback
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.modules import load_plain_module
from distbench.workloads.weights import plain_name

_LOCALHOST = "127.0.0.1"


class HorovodEngine(TorchEngine):
    """The plain module, with Horovod's optimizer around that of the case."""

    _has_stepped = False

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        precision = self._case.precision
        is_compressed = precision.reduce != precision.master
        made: torch.optim.Optimizer = hvd.DistributedOptimizer(
            super().make_optimizer(layers),
            named_parameters=self.module.named_parameters(),
            compression=hvd.Compression.fp16 if is_compressed else hvd.Compression.none,
            backward_passes_per_step=self._case.batch.gradient_accumulation_steps,
        )
        own_zero_grad: Any = made.zero_grad
        # Horovod's has no argument, and torch's checkpoints pass one
        made.zero_grad = lambda **_: own_zero_grad()  # type: ignore[method-assign]
        return made

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """Horovod's optimizer as the one that takes its step.

        Horovod makes a class of the same name that derives from the optimizer's. This is a view of the live
        object, with its groups and states, in that base class.
        """
        view: torch.optim.Optimizer = object.__new__(type(self._optimizer).__bases__[0])
        view.__dict__ = self._optimizer.__dict__
        return view

    def reduce_dtype(self) -> str:
        compression = self._horovod._compression
        if compression is hvd.Compression.none:
            return readback.dtype_name(p.dtype for p in self.module.parameters())
        return "fp16" if compression is hvd.Compression.fp16 else str(compression)

    def effective_settings(self) -> dict[str, Any]:
        return {
            **super().effective_settings(),
            "world_size": hvd.size(),
            "gradient_accumulation_steps": self._horovod.backward_passes_per_step,
        }

    def memory_by_kind(self) -> dict[str, int]:
        kinds = super().memory_by_kind()
        # its fusion buffer belongs to C++, which does not tell its size
        del kinds["buffers"]
        return kinds

    @property
    def _horovod(self) -> Any:
        """The optimizer, with Horovod's attributes."""
        return self._optimizer

    def _backward(self, loss: torch.Tensor) -> None:
        super()._backward(loss)
        if self._micro_batch_count == self._accumulation:
            if not self._has_stepped:
                self._check_gradients()
            # as before clipping: gradients are read between the last backward pass and the step
            self._horovod.synchronize()

    def _check_gradients(self) -> None:
        """Check that each trained parameter has a gradient, as DDP does.

        Raises:
            UnsupportedCase: Horovod would give others one of zero, by which weight decay changes them.
        """
        named = [(plain_name(name), p) for name, p in self.module.named_parameters() if p.requires_grad]
        if unused := [name for name, parameter in named if parameter.grad is None]:
            raise UnsupportedCase(
                f"Horovod gives a gradient of zero to parameters that the loss does not use, here "
                f"{len(unused):,} of {len(named):,} ({modules.listed(unused)}), so that weight decay changes "
                "them; freeze them, or use engine: native"
            )

    def _step_optimizer(self) -> None:
        self._has_stepped = True
        with self._horovod.skip_synchronize():
            self._horovod.step()


def build_horovod(context: RankContext) -> HorovodEngine:
    """Engine of this rank.

    Raises:
        UnsupportedCase: ranks are on several nodes, or this Horovod has no gloo.
        Mismatch: Horovod has joined other ranks than torch.
    """
    if len(set(context.node_of_rank)) > 1:
        raise UnsupportedCase(
            "engine horovod joins the ranks of one node, without horovodrun; use one node, or engine: native"
        )
    if not hvd.gloo_built():
        raise UnsupportedCase(
            "the installed horovod was built without gloo; reinstall it with HOROVOD_WITH_GLOO=1, or "
            "uninstall it, and distbench builds its own"
        )
    # a process that trains several times stays joined
    if not hvd.is_initialized():
        _join(context)
    found = hvd.rank(), hvd.size()
    if found != (context.rank, context.world_size):
        raise Mismatch(
            f"horovod: expected rank {context.rank} of {context.world_size}, found {found[0]} of {found[1]}"
        )
    module, layers = load_plain_module(context)
    engine = HorovodEngine(context, module, layers)
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    return engine


def _join(context: RankContext) -> None:
    """Let Horovod connect the ranks, which it would get from horovodrun."""
    rank, size = str(context.rank), str(context.world_size)
    os.environ.update(
        {
            "HOROVOD_RANK": rank,
            "HOROVOD_SIZE": size,
            "HOROVOD_LOCAL_RANK": rank,
            "HOROVOD_LOCAL_SIZE": size,
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": "lo",
        }
    )
    with _rendezvous(context.rank) as port:
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = _LOCALHOST
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
        hvd.init()
        dist.barrier()


@contextmanager
def _rendezvous(rank: int) -> Iterator[int]:
    """Port of Horovod's rendezvous, which rank 0 serves inside this context. A collective call.

    Horovod's own start of the server listens on all interfaces.
    """
    server = RendezvousHTTPServer((_LOCALHOST, 0), RendezvousHandler, 0) if rank == 0 else None
    port = [server.server_address[1] if server else 0]
    dist.broadcast_object_list(port)
    if server is None:
        yield port[0]
        return
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield port[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
