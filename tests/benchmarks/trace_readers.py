"""Time and memory of ``distbench trace`` and of HolisticTraceAnalysis on the same files.

    python trace_readers.py HTA_PYTHON FOLDER

HTA_PYTHON is the interpreter of an environment that has HTA (pip install HolisticTraceAnalysis). FOLDER has
one trace of each rank, rank<N>.json or rank<N>.json.gz. Each tool reads all of them once and divides the
steps into computation, communication and idle time; distbench makes all of its tables besides.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

_HTA = """
import re, sys
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
folder = Path(sys.argv[1])
files = {int(re.search(r"rank(\\d+)", file.name)[1]): file.name for file in folder.glob("rank*.json*")}
print(TraceAnalysis(trace_files=files, trace_dir=str(folder)).get_temporal_breakdown(visualize=False))
"""


def measured(command: list[str]) -> tuple[float, float, float, float]:
    """Wall and CPU seconds of *command*, and GB of its largest process and of all at once."""
    began, before = time.monotonic(), os.times()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL)
    largest = together = 0
    while process.poll() is None:
        sizes = [resident(each) for each in (process, *process.children(recursive=True))]
        largest, together = max(largest, *sizes), max(together, sum(sizes))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}")
    spent = sum(os.times()[2:4]) - sum(before[2:4])
    return time.monotonic() - began, spent, largest / 1e9, together / 1e9


def resident(process: psutil.Process) -> int:
    """Resident bytes of *process*; 0 if it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def main(interpreter: str, folder: Path) -> None:
    tools = {
        "distbench": [sys.executable, "-m", "distbench", "trace", str(folder), "--json"],
        "HTA": [interpreter, "-c", _HTA, str(folder)],
    }
    for name, command in tools.items():
        wall, cpu, largest, together = measured(command)
        sizes = f"{largest:.2f} GB in one process, {together:.2f} GB in all"
        print(f"{name}: {wall:.0f} s, {cpu:.0f} s of CPU, {sizes}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
