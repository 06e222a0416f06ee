"""The CUDA device of a rank, or the reason why torch can't use it."""

from __future__ import annotations

import sys

import torch


class CudaUnavailableError(RuntimeError):
    """This torch can't use the GPUs of this machine."""


def open_cuda_device(index: int) -> torch.device:
    """Make the visible GPU *index* the device of this process.

    Raises:
        CudaUnavailableError: torch is built without CUDA, or the driver does not serve it.
    """
    if torch.version.cuda is None:
        raise CudaUnavailableError(
            f"torch {torch.__version__} in {sys.prefix} is built without CUDA; install a build with CUDA "
            "(https://pytorch.org/get-started/locally), or use device: cpu"
        )
    if not torch.cuda.is_available():
        raise CudaUnavailableError(
            f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and the driver serves no GPU "
            "to it; update the driver (nvidia-smi shows its CUDA version), install a torch for an older "
            "CUDA, or see CUDA_VISIBLE_DEVICES"
        )
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
