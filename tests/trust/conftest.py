"""A server that a loaded machine does not run for seconds is not taken for one that does not answer."""

from __future__ import annotations

import pytest
from waiting import WATCHDOG_S

from softs_fast.trust import handshake


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_TIMEOUT_S", WATCHDOG_S)
