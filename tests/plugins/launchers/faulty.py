from __future__ import annotations

import errno
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distbench.ipc.build_files import BuildEvent, append_event, read_items
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import RankExit
from distbench.ipc.trial_files import RankError, result_file
from distbench.launchers.base import CancelCheck, Launcher, LaunchSession, RunningLaunch, never_cancelled
from distbench.launchers.pretend import Pretend

_PAGE = 1 << 12


@dataclass(frozen=True)
class Faulty(Launcher):
    """Pretends as ``pretend`` does, but not while there is a file that says what goes wrong."""

    file: str
    """Its text is ``hang`` (until it is gone), ``prepare`` (nothing can be built), ``fill`` (rank 0 leaves no
    byte of its disk), the name of an error that rank 0 raises, or what of the launcher raises: ``prepare
    raises``, ``launch raises``, ``wait raises``."""
    here: bool = False
    """Whether ranks are said to run on this machine."""
    rounds: tuple[int, ...] = (0, 1, 2)
    """The rounds that it is about."""

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        return []

    def open_session(self, run_id: str) -> LaunchSession:
        return _FaultySite(self, Pretend().open_session(run_id))


class _FaultySite(LaunchSession):
    def __init__(self, options: Faulty, site: LaunchSession) -> None:
        self._options, self._site, self._file = options, site, Path(options.file)
        self.is_local = options.here  # type: ignore[misc]  # of this launcher it is an option

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        fault = self._file.read_text() if self._file.exists() else ""
        if spec.command == "prepare":
            _raise_at("prepare raises", fault)
            return _unbuilt(spec) if fault == "prepare" else self._site.launch(spec, is_cancelled)
        handle = self._site.launch(spec, is_cancelled)
        folder = spec.folder
        if int(folder.name) not in self._options.rounds:
            return handle
        _raise_at("launch raises", fault)
        if fault == "fill":
            result_file(folder, 0).unlink()
            _fill(folder / "ballast")
            return _Gone(errno.ENOSPC)
        if fault.endswith("Error"):
            result_file(folder, 0).unlink()
            RankError(time.time(), "build", [fault], "it is gone").write(folder, 0)
        return _Hanging(handle, self._file, folder) if fault in ("hang", "wait raises") else handle

    def close(self) -> None:
        self._site.close()


def _raise_at(place: str, fault: str) -> None:
    if fault == place:
        raise ValueError("40 is not a valid Signals")


def _unbuilt(spec: LaunchSpec) -> RunningLaunch:
    for item in read_items(spec.instructions):
        append_event(spec.instructions, BuildEvent(item.name, ended=True, failed="no compiler"))
    return _Gone()


def _fill(file: Path) -> None:
    """Leave no byte of the disk of *file*."""
    with suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(_PAGE))


class _Gone(RunningLaunch):
    """A process that has ended."""

    def __init__(self, code: int = 0) -> None:
        self._code = code

    def wait(self, seconds: float) -> list[RankExit]:
        return [RankExit(0, self._code, time.time())]

    def signal(self, number: int) -> None:
        """Nobody is there to receive it."""

    def stop(self) -> None:
        """Nobody is there to be stopped."""


class _Hanging(RunningLaunch):
    """A trial that neither ends nor delivers while there is a certain file."""

    def __init__(self, handle: RunningLaunch, file: Path, folder: Path) -> None:
        self._handle, self._file = handle, file
        self._kept_back = {each: each.read_text() for each in folder.glob("rank*.json")}
        for each in self._kept_back:
            each.unlink()

    def wait(self, seconds: float) -> list[RankExit]:
        if self._file.exists():
            _raise_at("wait raises", self._file.read_text())
            time.sleep(seconds)
            return []
        for each, text in self._kept_back.items():
            each.write_text(text)
        return self._handle.wait(seconds)

    def signal(self, number: int) -> None:
        self._handle.signal(number)

    def stop(self) -> None:
        self._file.with_suffix(".stopped").touch()
        self._handle.stop()
