"""A run that is started from Python, with real ranks."""

import subprocess
import sys

import distbench as db

SUITE = {
    "workload": "mlp",
    "batch": {"global_batch_size": 8},
    "strategies": ["single", "ddp"],
    "world_sizes": [2, 1],
    "measure": {"warmup": 1, "steps": 2, "trials": 1, "repeat_noisy": 0},
}


def test_ranks_train_and_the_process_that_starts_them_imports_no_torch(tmp_path):
    # no guard for __main__: ranks are not children of the script
    script = f"""
import sys
import distbench as db
run = db.run({SUITE!r}, out={str(tmp_path)!r})
print(*sorted(row.status for row in run.cases if row.measured), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["measured", "measured", "measured", "False"]
    (folder,) = tmp_path.iterdir()
    run = db.load(folder)
    assert [line for line in done.stderr.splitlines() if line.startswith("[3/3] ")]
    for record in run.records:
        assert record.values["final_loss"] > 0
        assert set(record.environment["packages"]) >= {"torch"}
