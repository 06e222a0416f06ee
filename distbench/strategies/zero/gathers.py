"""All-gathers of DeepSpeed's stage 3 (0.19.8), by going through a step as its coordinator does. No torch.

Before a module runs, in either pass, it gathers the parameters that are its own, and then those of the next
modules, up to a number of elements (``PartitionedParameterCoordinator``, which knows the order of the modules
from the third micro-batch on). It releases a module's parameters unless they are used again soon.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from distbench.core.case import Case
from distbench.strategies.zero import buckets
from distbench.strategies.zero.config import sizes_for_model
from distbench.workloads.base import workload_of
from distbench.workloads.module_calls import ModuleCall

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero

Event = tuple[Literal["fetch", "multiply", "gradients", "release", "backward"], ModuleCall]
"""Kind of an event, and its module."""


@dataclass
class GatherCount:
    """All-gathers of parameters in a step, and synchronizations of these and of the reductions."""

    calls: int = 0
    gathered: int = 0
    """Elements, with the padding of each parameter to a multiple of the ranks."""
    still_gathered: int = 0
    """Elements that are gathered when a forward or backward pass begins."""
    synchronizations: int = 0
    reduction_synchronizations: int = 0


def gathers(strategy: Zero, case: Case, parameters: int) -> GatherCount | None:
    """All-gathers of a step of *case*, whose model has *parameters* parameters.

    None: unknown without the model, or with some of the options.

    Compiled layers call no hooks of the modules inside them, selective recomputation skips some of their
    products, and float8 has other modules; hpZ, MiCS and quantization gather in other ways, and a disk in
    another order.
    """
    root, sizes = workload_of(case).module_calls(), buckets.model_sizes(case)
    if root is None or sizes is None or buckets.known_tensors(strategy, case, parameters) is None:
        return None
    in_groups = max(strategy.hpz_partition_size, strategy.mics_shard_size) > 1
    is_changed = case.compile != "none" or case.precision.float8 != "none"
    if in_groups or is_changed or strategy.quantized_weights or "nvme" in strategy.offloads:
        return None
    events = _events(root, case)
    if events is None:
        return None
    coordinator = _Coordinator(events, sizes_for_model(strategy, sizes), case.world_size)
    for _ in range(case.batch.gradient_accumulation_steps):
        coordinator.run_micro_batch()
    coordinator.end_step()
    return coordinator.count


@dataclass
class _Coordinator:
    """State of the parameters in a step."""

    events: list[Event]
    """Events of a micro-batch."""
    sizes: dict[str, int]
    """DeepSpeed's sizes, in elements."""
    ranks: int
    count: GatherCount = field(default_factory=GatherCount)

    def __post_init__(self) -> None:
        self._elements: dict[str, int] = {}
        self._uses: dict[str, list[int]] = {}
        self._order: list[tuple[str, int]] = []
        self._before = [0]
        """Elements of the parameters of all modules that run before each one."""
        for number, module in enumerate(module for what, module in self.events if what == "fetch"):
            for name, elements in module.parameters:
                self._elements[name] = elements
                self._uses.setdefault(name, []).append(number)
                self._order.append((name, number))
            self._before.append(self._before[-1] + sum(size for _, size in module.parameters))
        threshold = self.sizes["param_persistence_threshold"]
        self._persistent = {name for name, size in self._elements.items() if size <= threshold}
        self._gathered = set(self._persistent)
        self._in_flight = set[str]()
        """Those of the gathered parameters that no module has waited for."""
        self._active: dict[str, set[int]] = {name: set() for name in self._elements}
        self._has_multiplied = True
        self._bucket = 0

    def run_micro_batch(self) -> None:
        """Run the forward and the backward pass of a micro-batch."""
        self._add_still_gathered()
        self._gathered -= self._in_flight
        self._in_flight.clear()
        self._live, self._step = 0, 0
        self._queue, self._fetched_for = deque(self._order), dict.fromkeys(self._elements, -1)
        self._gradients_left = dict.fromkeys(self._elements, 0)
        for what, module in self.events:
            if what == "gradients":
                for name, _ in module.parameters:
                    self._gradients_left[name] += 1
        for what, module in self.events:
            self._handle(what, module)
        if self._bucket:
            self._reduce()
        # modules whose inputs have no gradient have no hook after their backward pass
        for name, active in self._active.items():
            if active:
                active.clear()
                self._release(name)

    def end_step(self) -> None:
        """Gather the parameters that stay gathered, one by one, after their update."""
        for name in self._persistent:
            self._gather({name})

    def _handle(self, what: str, module: ModuleCall) -> None:
        if what == "fetch":
            self._fetch(module)
        elif what == "multiply":
            self._has_multiplied = True
        elif what == "gradients":
            self._add_gradients(module)
        elif what == "release":
            self._release_module(module)
        else:
            self._add_still_gathered()

    def _add_still_gathered(self) -> None:
        self.count.still_gathered += sum(self._elements[name] for name in self._gathered)

    def _fetch(self, module: ModuleCall) -> None:
        own = {name for name, _ in module.parameters}
        self._start(own)
        self._in_flight -= own
        for name in own:
            self._active[name].add(id(module))
        missing = {name for name in own if self._fetched_for[name] < self._step}
        while self._queue and missing:
            name, used_at = self._queue.popleft()
            self._fetched_for[name] = used_at
            missing.discard(name)
        self._prefetch()
        self._step += 1

    def _prefetch(self) -> None:
        room = min(self.sizes["max_live_parameters"] - self._live, self.sizes["prefetch_bucket_size"])
        ahead: set[str] = set()
        size = 0
        while self._queue and size < room:
            name, used_at = self._queue.popleft()
            self._fetched_for[name] = max(self._fetched_for[name], used_at)
            if name not in self._gathered | ahead:
                ahead.add(name)
                size += self._elements[name]
        self._start(ahead)

    def _start(self, names: set[str]) -> None:
        """Gather those of *names* that are not gathered yet, at once."""
        if missing := names - self._gathered:
            self._live += sum(self._elements[name] for name in missing)
            self._gathered |= missing
            self._in_flight |= missing
            self._gather(missing)

    def _gather(self, names: set[str]) -> None:
        self.count.calls += 1
        self.count.gathered += sum(-(-self._elements[name] // self.ranks) * self.ranks for name in names)
        self.count.synchronizations += self._synchronizes()

    def _add_gradients(self, module: ModuleCall) -> None:
        for name, elements in reversed(module.parameters):
            # the gradient of a shared parameter is ready once all that use it have added theirs
            self._gradients_left[name] -= 1
            if self._gradients_left[name]:
                continue
            if self._bucket and self._bucket + elements > self.sizes["reduce_bucket_size"]:
                self._reduce()
            self._bucket += elements

    def _reduce(self) -> None:
        self._bucket = 0
        self.count.reduction_synchronizations += self._synchronizes()

    def _synchronizes(self) -> bool:
        """True if matrices were multiplied since the collective before this one."""
        synchronizes, self._has_multiplied = self._has_multiplied, False
        return synchronizes

    def _release_module(self, module: ModuleCall) -> None:
        for name, _ in module.parameters:
            self._active[name].discard(id(module))
            if not self._is_needed(name):
                self._release(name)

    def _is_needed(self, name: str) -> bool:
        """True if the parameter *name* must stay for one of the next modules."""
        if self._fetched_for[name] > self._step:
            return True
        uses = self._uses[name]
        place = bisect_left(uses, self._step)
        if place == len(uses):
            return False
        return self._before[uses[place]] - self._before[self._step] < self.sizes["max_reuse_distance"]

    def _release(self, name: str) -> None:
        if name in self._gathered - self._in_flight - self._persistent and not self._active[name]:
            self._gathered.discard(name)
            self._live -= self._elements[name]


def _events(root: ModuleCall, case: Case) -> list[Event] | None:
    """Events of a micro-batch of *case*; None: unknown."""
    recomputes = case.activation_checkpointing != "none"
    if recomputes and (case.activation_checkpointing != "full" or not _has_layer(root)):
        return None
    return [*_forward(root), ("backward", root), *_backward(root, recomputes=recomputes)]


def _has_layer(module: ModuleCall) -> bool:
    return module.ends_with_product or any(map(_has_layer, module.calls))


def _forward(module: ModuleCall, unfinished: tuple[ModuleCall, ...] = ()) -> Iterator[Event]:
    """Forward pass of *module*; torch stops a recomputation inside the modules *unfinished*."""
    is_whole = not any(module is each for each in unfinished)
    yield "fetch", module
    if module.multiplies and is_whole:
        yield "multiply", module
    for inner in module.calls:
        yield from _forward(inner, unfinished)
    if is_whole:
        yield "release", module


def _backward(
    module: ModuleCall, fetched: tuple[ModuleCall, ...] = (), *, recomputes: bool
) -> Iterator[Event]:
    """Backward pass of *module*, unless it is one of those *fetched* with the fetch of its parameters."""
    if not any(module is each for each in fetched):
        yield "fetch", module
    if recomputes and module.ends_with_product:
        fetched = _last_inside(module)
        for inner in fetched:
            yield "fetch", inner
        # the first gradient, that of the last product, needs operands of the forward pass
        for inner in module.calls:
            yield from _forward(inner, fetched)
    for inner in reversed(module.calls):
        yield from _backward(inner, fetched, recomputes=recomputes)
    if module.multiplies:
        yield "multiply", module
    yield "gradients", module
    if not module.takes_data:
        yield "release", module


def _last_inside(module: ModuleCall) -> tuple[ModuleCall, ...]:
    """The last module inside *module*, the last inside that one, and so on."""
    if not module.calls:
        return ()
    last = module.calls[-1]
    return (last, *_last_inside(last))
