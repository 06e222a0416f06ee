"""A thousand trials in one run: nothing grows that shouldn't."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.deep

TRIALS = 1000
SUITE = f"""
workload: mlp
batch: {{global_batch_size: 8}}
strategies: [single]
world_sizes: [1]
metrics: [steptime, throughput]
measure: {{warmup: 1, steps: 2, profile_steps: 0, trials: {TRIALS}}}
launcher: local
"""
# what the first trials load stays; what grows after them is a leak
SETTLED = TRIALS // 10
MEBI = 2**20


@dataclass(frozen=True)
class Sight:
    """What the run holds after some of its trials."""

    trials: int
    rss: tuple[int, ...]
    """Bytes of the command line and of its fork server."""
    threads: tuple[int, ...]
    descriptors: tuple[int, ...]
    shared_memory: int
    """Files in /dev/shm."""
    folder: int
    """Bytes in the run's folder."""


def sights(process: subprocess.Popen[str], out: Path) -> Iterator[Sight]:
    """Look at the run every few seconds until it ends."""
    command = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(3)
        try:
            seen = [command, *command.children()]
            yield Sight(
                trials=sum(1 for _ in out.glob("*/trials/*/*/record.json")),
                rss=tuple(one.memory_info().rss for one in seen),
                threads=tuple(one.num_threads() for one in seen),
                descriptors=tuple(one.num_fds() for one in seen),
                shared_memory=sum(1 for _ in Path("/dev/shm").iterdir()),
                folder=sum(file.stat().st_size for file in out.rglob("*") if file.is_file()),
            )
        except (psutil.NoSuchProcess, FileNotFoundError):
            # it ended, or a file was renamed, while this was looking
            continue


@pytest.mark.drill("1,000 trials in one run")
def test_a_thousand_trials_leave_memory_threads_descriptors_and_pace_as_they_were(tmp_path, drill):
    file, out = tmp_path / "suite.yaml", tmp_path / "out"
    file.write_text(SUITE)
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "distbench", "run", str(file), "--out", str(out)],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seen = [sight for sight in sights(process, out) if len(sight.rss) == 2]
        output.seek(0)
        assert process.returncode == 0, output.read()
    # at the end the command line reads all of them at once, for its table and report
    settled = [sight for sight in seen if SETTLED < sight.trials < TRIALS]
    first, last = settled[: len(settled) // 4], settled[-len(settled) // 4 :]
    for who in range(2):
        before, after = ([sight.rss[who] for sight in part] for part in (first, last))
        assert statistics.median(after) - statistics.median(before) < 8 * MEBI
        for held in ("threads", "descriptors"):
            before, after = ([getattr(sight, held)[who] for sight in part] for part in (first, last))
            # what leaks stays open in every later look; a file that is just being read is open in one
            assert min(after) <= min(before)
    assert min(sight.shared_memory for sight in last) <= min(sight.shared_memory for sight in first)
    middle = len(settled) // 2
    assert growth(settled[middle:]) < 1.2 * growth(settled[:middle])
    walls = [json.loads(record.read_text())["wall_s"] for record in in_order(out)]
    before, after = statistics.median(walls[SETTLED : 4 * SETTLED]), statistics.median(walls[-3 * SETTLED :])
    assert after < 1.2 * before
    drill.seen(
        f"{len(walls)} trials: command line {settled[0].rss[0] // MEBI} to {settled[-1].rss[0] // MEBI} MiB, "
        f"fork server {settled[0].rss[1] // MEBI} to {settled[-1].rss[1] // MEBI} MiB, "
        f"a trial {before:.2f} to {after:.2f} s, {growth(settled) / 1024:.0f} KiB"
    )


def growth(seen: Sequence[Sight]) -> float:
    """Return the bytes by which the folder grew per trial."""
    first, last = seen[0], seen[-1]
    return (last.folder - first.folder) / (last.trials - first.trials)


def in_order(out: Path) -> list[Path]:
    """Return the records of the only case, first trial first."""
    return sorted(out.glob("*/trials/*/*/record.json"), key=lambda file: int(file.parent.name))
