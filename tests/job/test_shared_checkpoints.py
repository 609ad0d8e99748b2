"""Several processes with one folder of checkpoints: ranks of one run, runs one after the other, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoints import Training, alter, steps, written

import softs_fast as sf
from softs_fast.job import checkpoint_folder


def test_one_process_alone_has_its_folder_for_itself(tmp_path: Path) -> None:
    with (
        Training(tmp_path, is_alone=True),
        pytest.raises(sf.ConfigError, match=r"checkpoint folder .* is in use by this process"),
        Training(tmp_path, is_alone=True),
    ):
        pass
    with Training(tmp_path, is_alone=True):
        pass


def test_a_run_that_finds_another_one_in_its_folder_writes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a rank of an earlier run that wakes up, after a later run has gone on."""
    written(tmp_path, 1)
    with Training(tmp_path) as earlier, Training(tmp_path) as later:
        later.train(2)
        earlier.train(3)
        assert caplog.text.count("another run writes in this folder") == 3
        assert steps(tmp_path) == ["step-00000002", "step-00000003"]
        later.train(1)
    assert steps(tmp_path) == ["step-00000003", "step-00000004"]


def test_a_joiner_begins_with_the_newer_one_if_the_one_it_reads_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Training(tmp_path, keep=1) as running:
        running.train(1)
        verify = checkpoint_folder.verify_manifest

        def after_another_step(path: Path, what: str, part: tuple[int, int]) -> Any:
            monkeypatch.undo()
            running.train(1)
            return verify(path, what, part)

        monkeypatch.setattr(checkpoint_folder, "verify_manifest", after_another_step)
        with Training(tmp_path) as joiner:
            assert joiner.position.committed == 2


def test_two_ranks_that_write_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower one leaves that of the other as it is."""
    with Training(tmp_path) as slow, Training(tmp_path) as fast:
        fast.position.run = slow.position.run
        publish = checkpoint_folder.publish_folder

        def after_the_other(partial: Path, path: Path) -> None:
            monkeypatch.undo()
            fast.train(1)
            publish(partial, path)

        monkeypatch.setattr(checkpoint_folder, "publish_folder", after_the_other)
        slow.train(1)
    assert steps(tmp_path) == ["step-00000001"]


def test_one_that_stays_for_ever_is_written_again_if_a_later_rank_0_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Training(tmp_path, keep=1, keep_every=2) as slow,
        Training(tmp_path, keep=1, keep_every=2) as fast,
    ):
        fast.position.run = slow.position.run
        for _ in range(2):
            fast.position.applied()
        slow.position.applied()
        publish = checkpoint_folder.publish_folder

        def after_the_other(partial: Path, path: Path) -> None:
            monkeypatch.undo()
            fast.train(1)
            assert not partial.exists()
            publish(partial, path)

        monkeypatch.setattr(checkpoint_folder, "publish_folder", after_the_other)
        slow.train(1)
    assert steps(tmp_path) == ["step-00000002", "step-00000003"]


def test_a_damaged_one_that_another_rank_has_written_anew_stays(tmp_path: Path) -> None:
    written(tmp_path, 3)
    alter(tmp_path / "step-00000003")
    with Training(tmp_path) as first, Training(tmp_path) as second:
        second.position.run = first.position.run
        first.train(1)
        second.position.applied()
        second.train(1)
    assert steps(tmp_path) == ["step-00000003", "step-00000004"]
