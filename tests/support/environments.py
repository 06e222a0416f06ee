"""Other Python environments, which differ from this one in a package."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path


def beside(folder: Path) -> Path:
    """A virtual environment with all that this one has, one package in a version that nothing reads."""
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    venv.create(folder, symlinks=True)
    (site / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    shadow = site / "accelerate-0.0.1.dist-info"
    shadow.mkdir()
    (shadow / "METADATA").write_text("Metadata-Version: 2.1\nName: accelerate\nVersion: 0.0.1\n")
    return folder


def older_deepspeed(folder: Path) -> Path:
    """A virtual environment with the last DeepSpeed before it removed things; all else is as here."""
    older = beside(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(older / "bin" / "python"), "install"]
    options = ["--no-deps", "--no-build-isolation", "deepspeed==0.19.6"]
    subprocess.run([*pip, *options], env={**os.environ, "DS_BUILD_OPS": "0"}, check=True)
    return older


def torchtitan(folder: Path, version: str) -> Path:
    """A virtual environment with a *version* of torchtitan, on the torch that is here."""
    titan = beside(folder)
    pip = [sys.executable, "-m", "pip", "--python", str(titan / "bin" / "python"), "install"]
    # which both import, and neither asks for
    subprocess.run(
        [*pip, f"torchtitan=={version}", f"torch=={metadata.version('torch')}", "triton"], check=True
    )
    return titan
