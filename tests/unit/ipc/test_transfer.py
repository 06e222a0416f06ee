"""Files in pieces: whole with the right digest, or not there at all."""

from pathlib import Path

import pytest

from distbench.ipc.file_transfer import FileReceiver, TransferError, cached_sha256, file_chunks
from distbench.ipc.messages import FileChunk


def send_files(file: Path, name: str) -> list[FileChunk]:
    """What a channel delivers of *file*."""
    return list(file_chunks(file, name))


@pytest.fixture
def file(tmp_path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(bytes(range(256)) * 4000)
    return made


@pytest.fixture
def remote_folder(tmp_path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


def test_a_file_is_there_when_it_is_whole(file, remote_folder):
    arrivals, messages = FileReceiver(remote_folder), send_files(file, "trials/0/rank1.json")
    assert len(messages) > 2
    for message in messages[:-1]:
        arrivals.receive(message)
    place = remote_folder / "trials/0/rank1.json"
    assert not place.exists()
    arrivals.receive(messages[-1])
    assert place.read_bytes() == file.read_bytes()
    assert cached_sha256(place) == cached_sha256(file)


def test_an_empty_file_comes_too(tmp_path, remote_folder):
    (tmp_path / "empty").touch()
    for message in send_files(tmp_path / "empty", "empty"):
        FileReceiver(remote_folder).receive(message)
    assert (remote_folder / "empty").read_bytes() == b""


@pytest.mark.parametrize("lost", [0, 1])
def test_a_file_that_is_not_what_was_sent_is_not_put_in_place(file, remote_folder, lost):
    arrivals, messages = FileReceiver(remote_folder), send_files(file, "rank1.json")
    del messages[lost]
    with pytest.raises(TransferError, match=r"received rank1\.json with a different SHA-256 digest"):
        for message in messages:
            arrivals.receive(message)
    assert list(remote_folder.iterdir()) == []


def test_a_file_that_was_given_up_is_sent_again(file, remote_folder):
    arrivals, messages = FileReceiver(remote_folder), send_files(file, "rank1.log")
    for message in [*messages[:2], *messages]:
        arrivals.receive(message)
    assert (remote_folder / "rank1.log").read_bytes() == file.read_bytes()


def test_nothing_is_left_of_what_never_came_whole(file, remote_folder):
    arrivals = FileReceiver(remote_folder)
    arrivals.receive(send_files(file, "rank1.log")[0])
    arrivals.close()
    assert list(remote_folder.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../suite.yaml", "trials/../../x", ""])
def test_a_file_comes_into_the_folder_only(file, remote_folder, name):
    with pytest.raises(TransferError, match="not a file in the folder"):
        FileReceiver(remote_folder).receive(send_files(file, name)[0])
    assert list(remote_folder.iterdir()) == []
