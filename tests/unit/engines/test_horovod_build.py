"""The build of Horovod with a fake pip: whole, without network or compiler, and of other sources."""

import hashlib
import os
import sys
import tarfile
from pathlib import Path

import pytest

from distbench.engines.horovod.build import VERSION, build_into
from distbench.strategies.base import UnsupportedCase
from distbench.system.build_cache import NativeLibraryError

FAKE_PIP = """
import os, shutil, sys
from pathlib import Path
what, place = sys.argv[1], Path(os.environ["FAKE_PIP"])
if (place / what).is_file() and (what == "download" or sys.argv[-1].endswith("horovod-VERSION")):
    sys.exit((place / what).read_text() or 1)
if what == "download":
    wanted, to = (Path(sys.argv[sys.argv.index(option) + 1]) for option in ("-r", "--dest"))
    assert "--hash=sha256:" in wanted.read_text()
    shutil.copy(place / "sources.tar.gz", to / "horovod-VERSION.tar.gz")
elif sys.argv[-1].endswith("horovod-VERSION"):
    shutil.copytree(sys.argv[-1], sys.argv[sys.argv.index("--target") + 1], dirs_exist_ok=True)
""".replace("VERSION", VERSION)
SOURCES = {
    "CMakeLists.txt": "set(CMAKE_CXX_STANDARD 14)",
    "horovod/torch/CMakeLists.txt": "set_target_properties(t PROPERTIES CXX_STANDARD 14)",
    "cmake/Utilities.cmake": 'string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER '
    '"${CMAKE_CURRENT_SOURCE_DIR}")',
    "setup.py": "if self.verbose:\n    make_args.append('VERBOSE=1')\n",
}


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the fake pip: what it downloads; a file named after a command is the error it ends with."""
    place = tmp_path / "pip"
    place.mkdir()
    # without it, the real one would be found first
    (place / "__init__.py").touch()
    (place / "__main__.py").write_text(FAKE_PIP)
    for name, text in SOURCES.items():
        file = tmp_path / f"horovod-{VERSION}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with tarfile.open(place / "sources.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / f"horovod-{VERSION}", f"horovod-{VERSION}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_PIP", str(place))
    monkeypatch.setenv("CXX", sys.executable)
    return place


def sha256(pip: Path) -> str:
    return hashlib.sha256((pip / "sources.tar.gz").read_bytes()).hexdigest()


def test_a_build_is_made_of_the_edited_sources_and_is_there_at_once(pip, tmp_path):
    folder = tmp_path / "cache" / "horovod"
    for left in (".horovod.building", "horovod"):
        (folder.parent / left / "old").mkdir(parents=True)
    build_into(folder, sha256(pip))
    made = {name: (folder / name).read_text() for name in SOURCES}
    assert made["CMakeLists.txt"] == "set(CMAKE_CXX_STANDARD 17)"
    assert "CXX_STANDARD 17" in made["horovod/torch/CMakeLists.txt"]
    assert made["cmake/Utilities.cmake"].startswith("file(RELATIVE_PATH SUB_FOLDER ")
    assert "VERBOSE" not in made["setup.py"]
    assert not (folder / "old").exists()
    assert [each.name for each in folder.parent.iterdir()] == ["horovod"]


NO_NETWORK = """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'
ERROR: Could not find a version that satisfies the requirement horovod==0.28.1 (from versions: none)
ERROR: No matching distribution found for horovod==0.28.1"""
NO_COMPILE = """  error: subprocess-exited-with-error
  x Building wheel for horovod (pyproject.toml) did not run successfully.
  | exit code: 1
      FAILED: horovod/torch/mpi_ops.cc.o
      /src/horovod/torch/mpi_ops.cc:7:10: fatal error: torch/extension.h: No such file or directory
      ninja: build stopped: subcommand failed.
ERROR: Failed building wheel for horovod"""
NO_CMAKE = """  error: subprocess-exited-with-error
      CMake Error at CMakeLists.txt:3 (project):
ERROR: Failed building wheel for horovod"""


@pytest.mark.parametrize(
    ("command", "output", "told"),
    [
        (
            "download",
            NO_NETWORK,
            "can't download it (Horovod 0.28.1): Could not find a version that satisfies",
        ),
        (
            "install",
            NO_COMPILE,
            "mpi_ops.cc:7:10: fatal error: torch/extension.h: No such file or directory;",
        ),
        ("install", NO_CMAKE, "can't build it (Horovod 0.28.1): CMake Error at CMakeLists.txt:3 (project):;"),
    ],
    ids=["no network", "compiler", "cmake"],
)
def test_a_failure_is_one_line_with_a_remedy_and_leaves_nothing(pip, tmp_path, command, output, told):
    (pip / command).write_text(output)
    folder = tmp_path / "cache" / "horovod"
    with pytest.raises(NativeLibraryError) as failed:
        build_into(folder, sha256(pip))
    assert told in str(failed.value)
    assert "\n" not in str(failed.value)
    assert str(failed.value).endswith("use engine: native, or install a horovod for this torch")
    assert list(folder.parent.iterdir()) == []


def test_other_sources_than_those_of_the_release_are_not_built(pip, tmp_path):
    with pytest.raises(
        NativeLibraryError, match=r"expected sources with the SHA-256 92a43f.*, found [0-9a-f]{64}"
    ):
        build_into(tmp_path / "cache" / "horovod")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_it_is_unsupported_and_pip_is_not_asked(pip, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(
        UnsupportedCase, match=r"no C\+\+ compiler was found; install one \(Debian: apt-get install g\+\+\)"
    ):
        build_into(tmp_path / "cache" / "horovod", sha256(pip))
    assert not (tmp_path / "cache").exists()
