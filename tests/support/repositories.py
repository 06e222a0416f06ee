"""Git repositories for tests of gates."""

import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    command = ["git", *named, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
