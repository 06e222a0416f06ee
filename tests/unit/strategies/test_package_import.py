"""DeepSpeed is imported without mlflow, which is there for whoever imports it later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AUTOTUNER = """
try:
    import mlflow
except ImportError:
    mlflow = None
"""


@pytest.mark.parametrize(
    ("before", "seen"), [("", "None mlflow"), ("import mlflow; ", "mlflow mlflow")], ids=["new", "imported"]
)
def test_the_autotuner_sees_mlflow_only_if_others_have_imported_it(tmp_path, before, seen):
    (tmp_path / "deepspeed.py").write_text(AUTOTUNER)
    (tmp_path / "mlflow.py").write_text("")
    code = f"""
{before}import distbench.strategies._deepspeed.package_import
import deepspeed, mlflow
print(deepspeed.mlflow and deepspeed.mlflow.__name__, mlflow.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == seen
