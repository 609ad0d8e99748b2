"""The free space that a checkpoint needs before it is begun."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_checkpoints import Training, steps

from softs_fast.job import saver
from softs_fast.job.retention import partial_name


def test_without_free_space_none_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is left as it is, and the next checkpoint is written once there is space."""
    usage = shutil.disk_usage
    with Training(tmp_path, model=torch.nn.Linear(1000, 1000)) as training:
        training.train(1)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=11_999_999))
            patch.setattr(saver, "write_state", lambda *given: pytest.fail("it is begun"))
            training.train(1)
        [text] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert text == (
            f"the checkpoint of step 2 is not written: {tmp_path} has 12 MB of free space, and it needs 12 MB; delete other "
            "files, or keep fewer checkpoints; the one before it stays the newest"
        )
        training.train(1)
    assert steps(tmp_path) == ["step-00000001", "step-00000003"]


def test_what_was_left_of_others_takes_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage
    left = [tmp_path / partial_name(1, "dead"), tmp_path / ".trash-step-00000009"]
    with Training(tmp_path) as training:
        training.train(1)
        for one in left:
            one.mkdir()

        def full(path: Path) -> Any:
            return usage(path)._replace(free=0 if any(one.exists() for one in left) else 10**9)

        monkeypatch.setattr(shutil, "disk_usage", full)
        training.train(1)
        # Some network file systems say that they have no blocks at all.
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(total=0, used=0, free=0))
        training.train(1)
    assert steps(tmp_path) == ["step-00000002", "step-00000003"]
