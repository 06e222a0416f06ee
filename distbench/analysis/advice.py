"""What to try when a case did not deliver, by how it ended."""

from __future__ import annotations

from distbench.record import Status

ADVICE: dict[str, str] = {
    Status.UNSUPPORTED: "Nothing is wrong: the reason says what this machine lacks for it.",
    Status.OOM_GPU: "The device ran out of memory. Try a smaller micro-batch with more accumulation, "
    "activation checkpointing, or a strategy that shards more (zero3, fsdp) or offloads to the host.",
    Status.OOM_HOST: "The host ran out of memory. Try fewer ranks a host, less offload to the CPU (or "
    "offload to NVMe), and fewer workers that load data.",
    Status.CRASHED: "Read the traceback of the rank that is named: it failed first, the others followed. "
    "Run this case alone (--only) to see whether it fails again.",
    Status.HANG: "One rank stopped coming. Look at what each rank did last: the one that is behind is the "
    "cause, the others wait for it. Raise limits.step if steps are known to take that long.",
    Status.INIT_TIMEOUT: "The ranks never met, or the engine was not ready in time. Check that every host is "
    "reached on its address and port; raise limits.start where joining, or limits.build where building the "
    "model, is known to take that long.",
    Status.INVALID_NAN: "The loss was no longer finite. Try a lower learning rate, gradient clipping, "
    "or bf16 in the place of fp16; if single trains well with the same numbers, suspect the strategy.",
    Status.MISMATCH: "The engine did something else than the suite asked for, so its numbers would belong to "
    "another case. The reason names the setting: ask for what it does, or find what overrides it.",
    Status.PREPARE_FAILED: "Nothing was launched: C++ ops or initial weights could not be made. Check for a "
    "compiler and ninja, for room on the disk, and the end of the log.",
    Status.CANCELLED: "It was stopped from outside. Run the suite again with --resume RUN to fill it in.",
}
"""Word of a status -> a sentence or two; of every status but ``measured``."""
