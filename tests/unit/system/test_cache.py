"""Where the cache is: chosen, in the home, or in TMPDIR where the home can't be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distbench.core.errors import UsageError
from distbench.system.cache import cache_folder, temporary_cache_text

SAY = "from distbench.system.cache import *; print(cache_folder()); print(temporary_cache_text())"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home and a TMPDIR of the test's own."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    for name in ("DISTBENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "home"


def test_a_chosen_folder_comes_first_and_a_writable_home_second(home, monkeypatch):
    assert cache_folder() == home / ".cache/distbench"
    assert temporary_cache_text() == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other"))
    assert cache_folder() == home / "other/distbench"
    monkeypatch.setenv("DISTBENCH_CACHE", "/nowhere/cache")
    assert cache_folder() == Path("/nowhere/cache"), "what was chosen is not replaced in silence"
    assert temporary_cache_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a home read-only")
def test_a_read_only_home_leaves_a_folder_of_the_user_in_tmpdir(home):
    script = f'mount -o bind,ro "{home}" "{home}" && mount -o remount,bind,ro "{home}" && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable, SAY],
        env={**os.environ, "TMPDIR": str(home.parent / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder, told = done.stdout.splitlines()
    assert folder == str(home.parent / f"tmp/distbench-{os.getuid()}")
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert told == (
        f"{home}/.cache/distbench can't be written, so the cache is {folder}; to keep it, set "
        "DISTBENCH_CACHE to a folder that lasts"
    )


@pytest.mark.parametrize("taken", ["open", "link", "file"])
def test_a_folder_that_others_can_write_to_is_not_used(home, monkeypatch, taken):
    # as for a user without an entry in passwd
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    folder = home.parent / f"tmp/distbench-{os.getuid()}"
    assert cache_folder() == folder
    assert temporary_cache_text().startswith(f"this user has no home, so the cache is {folder};")
    folder.rmdir()
    match taken:
        case "open":
            folder.mkdir()
            folder.chmod(0o777)
        case "link":
            folder.symlink_to(home)
        case "file":
            folder.write_text("")
    with pytest.raises(UsageError, match="DISTBENCH_CACHE is not set"):
        cache_folder()
