"""What arguments mean, without running a command."""

from __future__ import annotations

import pytest

from softs_fast.cli import parser


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_market_is_found_by_the_environment(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, endpoint in (("ipc:///run/frontend", "ipc:///run/frontend"), ("", None)):
        monkeypatch.setenv("SOFTS_FAST_FRONTEND", value)
        assert parser().parse_args([command]).target == endpoint
        assert parser().parse_args([command, "tcp://127.0.0.1:1"]).target == "tcp://127.0.0.1:1"
