"""Read a Chrome trace of torch.profiler: ``.json`` or ``.json.gz``, as ``export_chrome_trace`` and
``tensorboard_trace_handler`` write it.

msgspec decodes a file of 1 GB in a quarter of the time of the standard library, and builds no object for what
is not asked for. The arguments of an event stay bytes until its kind is known: most are never needed.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from distbench.core.errors import UsageError
from distbench.traces.trace import DEVICE_KINDS, STEP_PREFIX, ProfilerEvent

_MICRO = 1e-6
_MOST_US = 1e16
"""Farthest time: more than 300 years."""
_OLD_KINDS = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""Categories before torch 1.12 -> those of today."""
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_READ_KINDS = {*DEVICE_KINDS, *_LAUNCHES, "cpu_op", "user_annotation", "python_function"}
_MEMORY = "[memory]"
"""Name of the instant at which an allocator made or freed a tensor (``profile_memory=True``)."""
_DETAILED = re.compile(r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm)$|record_param_comms$|nccl:|gloo:")
"""Host events whose arguments are needed: matrix products and collectives."""


# most of a trace with stacks; what is left are modules and lines of the user
_LIBRARY_CALL = re.compile(r"<|torch/|threading\.py|/usr/lib/|.*(site|dist)-packages/")


class TraceFileError(UsageError):
    """A file that is no trace of torch.profiler."""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct):
    events: list[_Event] | None = msgspec.field(default=None, name="traceEvents")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    base_ns: Any = msgspec.field(default=0, name="baseTimeNanoseconds")


class _Numbers(msgspec.Struct, gc=False):
    """Arguments of the host events that are most of a trace."""

    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")


class _MemoryNumbers(msgspec.Struct, gc=False):
    """Arguments of an instant of an allocator."""

    device: Any = msgspec.field(default=None, name="Device Id")
    kind: Any = msgspec.field(default=None, name="Device Type")
    change: Any = msgspec.field(default=None, name="Bytes")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")


_FILE = msgspec.json.Decoder(_File, strict=False)
_LIST = msgspec.json.Decoder(list[_Event], strict=False)
_NUMBERS = msgspec.json.Decoder(_Numbers)
_MEMORY_NUMBERS = msgspec.json.Decoder(_MemoryNumbers)
_DETAILS = msgspec.json.Decoder(dict[str, Any])
_WHOLE_NUMBERS = (
    "correlation",
    "device",
    "Sequence number",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "Seq",
)
_TEXTS = ("Collective name", "dtype", "Process Group Ranks", "Process Group Name")


class MemoryCount(NamedTuple):
    """Bytes of one device after its allocator made or freed a tensor."""

    moment: float
    """On the clock of the host."""
    device: int | None
    """Number of the device; None: the host."""
    change: int
    """Bytes that were made, negative if freed."""
    allocated: int
    """Bytes of all tensors."""
    reserved: int
    """Bytes that the allocator holds; 0 on the host."""


@dataclass
class TraceFile:
    """Content of one file, of one rank."""

    path: Path
    events: list[ProfilerEvent]
    origin_ns: int
    """Zero of the events' times, in nanoseconds since 1970 on the clock of the rank's node."""
    rank: int | None = None
    """As the file says; None: it does not."""
    world_size: int | None = None
    device: str = ""
    """Name of the device; empty: not in the file."""
    memory: list[MemoryCount] = field(default_factory=list)
    """Counts of the allocators, if memory was recorded."""
    notes: list[str] = field(default_factory=list)
    """Sentences on damage that was repaired."""


def read_file(path: Path) -> TraceFile:
    """Read the trace in *path*.

    Raises:
        TraceFileError: it can't be read, or is no trace of torch.profiler.
    """
    notes: list[str] = []
    decoded = _decode(path, _content(path, notes), notes)
    found = decoded.events or []
    events, start_us = _profiler_events(found)
    if not events:
        kinds = sorted({event.cat for event in found if event.cat})[:6]
        known = f" (its kinds of events: {', '.join(kinds)})" if kinds else ""
        raise TraceFileError(f"{path}: no event in it is of torch.profiler{known}")
    about = decoded.distributed if isinstance(decoded.distributed, Mapping) else {}
    origin_ns = (_whole(decoded.base_ns) or 0) + round(start_us * 1e3)
    rank, world_size = _whole(about.get("rank")), _whole(about.get("world_size"))
    memory = [*_memory_counts(found, start_us)]
    device = _device(decoded.devices, events)
    return TraceFile(path, events, origin_ns, rank, world_size, device, memory, notes)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _content(path: Path, notes: list[str]) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceFileError(f"{path}: {error.strerror or error}") from None
    if not raw:
        raise TraceFileError(f"{path}: the file is empty: its process ended before the profiler wrote it")
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        notes.append("the compressed file is cut off or damaged; what comes before is used")
    try:
        readable = zlib.decompressobj(wbits=31).decompress(raw)
    except zlib.error:
        readable = b""
    if not readable:
        raise TraceFileError(f"{path}: the compressed file is damaged from its start on")
    return readable


def _decode(path: Path, content: bytes, notes: list[str]) -> _File:
    """Decode *content*, after repairs if it is cut off or has what JSON does not allow."""
    start = content[:512].lstrip()
    if start.startswith(b"<"):
        raise TraceFileError(f"{path}: it is a page of HTML or XML, not a trace; download the file itself")
    if not start.startswith((b"{", b"[")):
        raise TraceFileError(f"{path}: it is not JSON, so it is no Chrome trace of torch.profiler")
    try:
        decoded = _parse(content)
    except msgspec.ValidationError as error:
        raise TraceFileError(f"{path}: it is no Chrome trace of torch.profiler ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = _parse_repaired(path, content, notes)
    if decoded.events is None:
        raise TraceFileError(f'{path}: it has no "traceEvents", so it is no Chrome trace of torch.profiler')
    return decoded


def _parse(content: bytes) -> _File:
    return _File(_LIST.decode(content)) if content.lstrip()[:1] == b"[" else _FILE.decode(content)


def _parse_repaired(path: Path, content: bytes, notes: list[str]) -> _File:
    # kineto writes numbers as a C++ stream prints them, and names of files and threads as they are
    mended = re.sub(rb":\s*-?(?:nan|inf|NaN|Infinity)\b", b": null", content)
    mended = mended.decode("utf-8", "replace").encode()
    try:
        return _parse(mended)
    except msgspec.DecodeError as error:
        problem = str(error)
    closing = b"]" if mended.lstrip()[:1] == b"[" else b"]}"
    end = len(mended)
    # the last brace may close the arguments of the event that was cut
    for _ in range(8):
        end = max(mended.rfind(b"}", 0, end), 0)
        try:
            decoded = _parse(mended[: end + 1] + closing)
        except msgspec.DecodeError:
            continue
        notes.append("the file is cut off; the events before that are used")
        return decoded
    raise TraceFileError(f"{path}: it can't be read as JSON ({problem})")


def _profiler_events(decoded: list[_Event]) -> tuple[list[ProfilerEvent], float]:
    """Events of the profiler, and the time in microseconds that is zero for them."""
    known = [
        event
        for event in decoded
        if event.ph == "X"
        and _OLD_KINDS.get(event.cat, event.cat) in _READ_KINDS
        and _is_timed(event)
        and not (event.cat == "python_function" and _LIBRARY_CALL.match(event.name))
    ]
    start_us = min((event.ts for event in known if event.ts is not None), default=0.0)
    return [*_converted(known, start_us)], start_us


def _is_timed(event: _Event) -> bool:
    return event.ts is not None and abs(event.ts) < _MOST_US and 0 <= (event.dur or 0.0) < _MOST_US


def _converted(events: list[_Event], start_us: float) -> Iterator[ProfilerEvent]:
    # names of threads are numbers or words, and of several processes may be the same
    threads: dict[Any, int] = {}
    for event in events:
        kind = _OLD_KINDS.get(event.cat, event.cat)
        begin = ((event.ts or 0.0) - start_us) * _MICRO
        end = begin + (event.dur or 0.0) * _MICRO
        place = event.tid if kind in DEVICE_KINDS else (event.pid, event.tid)
        thread = threads.setdefault(place, len(threads))
        common = event.name, thread, begin, end
        if kind in DEVICE_KINDS or _DETAILED.match(event.name):
            about = _details(event.args)
            yield ProfilerEvent(
                *common,
                _elements(about),
                sequence=about.get("Sequence number"),
                kind=kind,
                correlation=about.get("correlation"),
                arguments=about,
            )
        elif kind == "python_function" or event.name.startswith(STEP_PREFIX):
            yield ProfilerEvent(*common, kind=kind)
        else:
            numbers = _numbers(event.args)
            correlation, sequence = _whole(numbers.correlation), _whole(numbers.sequence)
            yield ProfilerEvent(*common, sequence=sequence, kind=kind, correlation=correlation)


def _memory_counts(events: list[_Event], start_us: float) -> Iterator[MemoryCount]:
    for event in events:
        if event.ph != "i" or event.name != _MEMORY or not _is_timed(event):
            continue
        try:
            about = _MEMORY_NUMBERS.decode(event.args)
        except msgspec.DecodeError:
            continue
        allocated, kind, device = _whole(about.allocated), _whole(about.kind), _whole(about.device)
        # the number of the host is -1
        if allocated is None or kind is None or (kind and device is None):
            continue
        change = about.change if isinstance(about.change, int) else 0
        moment = ((event.ts or 0.0) - start_us) * _MICRO
        yield MemoryCount(moment, device if kind else None, change, allocated, _whole(about.reserved) or 0)


def _numbers(arguments: msgspec.Raw) -> _Numbers:
    try:
        return _NUMBERS.decode(arguments)
    except msgspec.DecodeError:
        return _Numbers()


def _details(arguments: msgspec.Raw) -> dict[str, Any]:
    """Those of *arguments* that are used, if they are of the type that the profiler writes."""
    try:
        about = _DETAILS.decode(arguments)
    except msgspec.DecodeError:
        return {}
    ranks = about.get("Process Group Ranks")
    about["Process Group Ranks"] = str(ranks) if isinstance(ranks, list) else ranks
    found: dict[str, Any] = {
        name: about[name] for name in _WHOLE_NUMBERS if _whole(about.get(name)) is not None
    }
    found |= {name: about[name] for name in _TEXTS if isinstance(about.get(name), str)}
    if isinstance(shapes := about.get("Input Dims"), list):
        found["Input Dims"] = [shape if _is_shape(shape) else [] for shape in shapes]
    if isinstance(types := about.get("Input type"), list):
        found["Input type"] = [*map(str, types)]
    return found


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and all(_whole(size) is not None for size in shape)


def _elements(about: Mapping[str, Any]) -> int | None:
    """Elements of the first input, as far as shapes were recorded."""
    shapes = about.get("Input Dims")
    return math.prod(shapes[0]) if shapes and shapes[0] else None


def _device(properties: Any, events: list[ProfilerEvent]) -> str:
    """Name of the device that the events ran on; empty if the file does not say."""
    if not isinstance(properties, list):
        return ""
    used = {event.arguments.get("device") for event in events if event.kind in DEVICE_KINDS}
    names = {
        str(each.get("name", ""))
        for each in properties
        if isinstance(each, Mapping) and (each.get("id") in used or len(properties) == 1)
    }
    return names.pop() if len(names) == 1 else ""
