"""The folder of checkpoints of ranks that begin together: all take the same one, and see the same folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_checkpoints import LEDGER, steps, written

import softs_fast as sf
from softs_fast.durable import write_manifest
from softs_fast.job.checkpoint_folder import CheckpointFolder
from softs_fast.job.peers import Peers
from softs_fast.job.position import Position
from softs_fast.job.retention import partial_name

SIZE = 2


class Thread(Peers):
    """A rank that is a thread."""

    def __init__(self, rank: int, said: list[Any], meeting: threading.Barrier) -> None:
        self.rank, self.size, self.group = rank, SIZE, None
        self._said, self._meeting = said, meeting

    def of_first(self, text: str) -> str:
        """Return the text of rank 0."""
        return str(self._of_all(text)[0])

    def largest(self, value: int) -> int:
        """Return the largest value."""
        return int(max(self._of_all(value)))

    def _of_all(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._meeting.wait(60)
        found = list(self._said)
        self._meeting.wait(60)
        return found


def begin(*folders: Path) -> list[str]:
    """Begin with two ranks; the checkpoint that each one loads, or its error."""

    def load(peers: Peers) -> Path | None:
        options = sf.Checkpoints(folders[peers.rank], every=1)
        with CheckpointFolder(
            options, "digits", Position(LEDGER, 0), "whole", peers, is_alone=True
        ) as folder:
            return folder.load(lambda path: None)

    return as_ranks(load)


def as_ranks(do: Callable[[Peers], object]) -> list[str]:
    """Do something as two ranks; what each one returns, or its error."""
    said, meeting = [None] * SIZE, threading.Barrier(SIZE)

    def run(rank: int) -> str:
        try:
            return str(do(Thread(rank, said, meeting)))
        except sf.ConfigError as error:
            return str(error)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(run, range(SIZE)))


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [(b"{", b"#"), (b'"job"', b'"\xff"'), (b'"format"', b'"forman"'), (b'"seed": 0', b'"seed": 7')],
    ids=["no JSON", "no text", "a key is missing", "another seed"],
)
def test_all_go_back_to_the_newest_that_is_whole_for_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: bytes, new: bytes, is_sealed: bool
) -> None:
    """Rank 0 verifies the file, and rank 1 reads it nevertheless."""
    written(tmp_path, 2)
    damaged = tmp_path / "step-00000002"
    facts = damaged / "checkpoint.json"
    facts.write_bytes(facts.read_bytes().replace(old, new, 1))
    if is_sealed:
        write_manifest(damaged)
    found = begin(tmp_path, tmp_path)
    if is_sealed and b"seed" in old:
        assert f"checkpoint {damaged} has seed=7, and this job 0" in found[0]
    else:
        assert found == [str(tmp_path / "step-00000001")] * SIZE
        assert f"checkpoint {damaged} is damaged" in caplog.text


def test_folders_that_ranks_do_not_share_are_refused(tmp_path: Path) -> None:
    first, second = begin(tmp_path / "a", tmp_path / "b")
    assert "another rank of torch.distributed refuses this" in first
    assert f"does not see what rank 0 writes into checkpoint folder {tmp_path / 'b'}" in second
    assert steps(tmp_path / "a") == [".lock"]
    assert not steps(tmp_path / "b")


def test_a_rank_without_a_folder_ends_all(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = begin(tmp_path / "a", tmp_path / "file")
    assert "another rank of torch.distributed refuses this" in first
    assert f"cannot write in checkpoint folder {tmp_path / 'file'}" in second


def test_what_was_left_unfinished_goes_at_the_start(tmp_path: Path) -> None:
    """Also of a step that this run may never write; no other process may be writing."""
    written(tmp_path, 1)
    for name in (partial_name(1, "dead"), partial_name(900, "dead"), ".trash-step-00000900"):
        (tmp_path / name / "dcp").mkdir(parents=True)
    assert begin(tmp_path, tmp_path) == [str(tmp_path / "step-00000001")] * SIZE
    assert steps(tmp_path) == [".lock", "step-00000001"]
