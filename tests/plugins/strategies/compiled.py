from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from distbench.core.case import Case
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.system import build_cache
from distbench.system.cache import cache_folder

FULL = """Error building extension 'compiled': [1/2] c++ -MMD -MF compiled.o.d {flags}
[2/2] c++ compiled.o -shared -lc10 -ltorch_cpu -o compiled.so
FAILED: compiled.so
c++ compiled.o -shared -lc10 -ltorch_cpu -o compiled.so
/usr/bin/ld: final link failed: No space left on device
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
"""


@dataclass(frozen=True)
class Compiled(Strategy):
    """DDP with a C library of its own, or with a way in which building one goes wrong."""

    does: Literal["works", "crashes", "fills", "hangs", "looks"] = "works"
    """Builds its library if ``COMPILES`` is set (without end if it is ``hangs``); dies; fails as on a full
    disk; never ends; says which Python it finds."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"compiled+{self.does}"

    def prepare(self, case: Case) -> list[str]:
        if self.does == "crashes":
            os.kill(os.getpid(), signal.SIGBUS)
        if self.does == "hangs":
            signal.pause()
        if self.does == "fills":
            raise RuntimeError(FULL.format(flags="-I/include " * 200))
        if self.does == "looks":
            return [str(shutil.which("python"))]
        if "COMPILES" not in os.environ:
            return []
        library = cache_folder() / "compiled" / "compiled.so"
        return build_cache.ensure_built(library, partial(_compile, library), library)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        return DistributedDataParallel().build(context)


def _compile(library: Path) -> None:
    with library.with_suffix(".log").open("a") as log:
        log.write("begun\n")
    if os.environ["COMPILES"] == "hangs":
        signal.pause()
    # large enough that half of it is no library
    source = 'extern "C" { const char built[1 << 16] = {1}; char *mine = (char *)built; }'
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
