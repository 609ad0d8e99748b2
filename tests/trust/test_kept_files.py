"""Files that are read again when they change."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from softs_fast.errors import ConfigError
from softs_fast.trust.kept import Kept


def test_a_change_that_could_not_be_read_is_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    has_descriptors = True

    def read() -> str:
        if not has_descriptors:
            raise ConfigError("too many open files")
        return path.read_text()

    kept = Kept([path], read, logging.getLogger("kept"))
    path.write_text("another")
    has_descriptors = False
    assert [kept.now(), kept.now()] == ["one", "one"]
    assert caplog.text.count("stays in force as it was: too many open files") == 1
    has_descriptors = True
    assert kept.now() == "another"
