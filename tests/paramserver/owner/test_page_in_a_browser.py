"""The owner's page in Chromium: what it shows, a button, its policy. Needs the extra browser, a wheel with QtWebEngine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import WATCHDOG_S

from softs_fast.paramserver.server.training.state_file import load_state
from softs_fast.paramserver.wire.signing import owner_key

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("PyQt6") is None, reason="needs the extra browser: PyQt6-WebEngine"
)


def test_the_page_shows_the_run_pauses_it_and_kicks_a_worker(serve, enter, tmp_path: Path) -> None:
    server = serve(world_size=1, quorum=1)
    client = enter(server)
    client.pull()
    saved = load_state(tmp_path / "s.state")
    assert saved is not None
    key = owner_key(saved.owner, saved.job)
    flags = "--disable-gpu --no-sandbox"
    browser = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "browser_process.py", f"{server.invite.url}/#{key.hex()}"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": flags, "HOME": str(tmp_path),
            "XDG_RUNTIME_DIR": str(tmp_path),
        },
    )  # fmt: skip
    watchdog = threading.Timer(WATCHDOG_S, browser.kill)
    watchdog.start()
    out, errors = browser.communicate()
    watchdog.cancel()
    assert browser.returncode == 0, errors
    seen = json.loads(out.splitlines()[-1])
    assert seen["open"]["numbers"][:6] == ["0 of 100", "-", "-", "1", "0 of 1", "1 of 1"]
    assert seen["open"]["workers"][:4] == ["0", "w", "active", "0"]
    assert seen["console_before"] == [], "the page has no error and breaks no rule of its own policy"
    assert (seen["paused"]["state"], seen["paused"]["told"]) == ("paused", "pause: done")
    assert server.status().state == "paused"
    assert sorted(seen["attacked"]["violations"]) == ["connect-src", "script-src-elem"]
    assert not seen["attacked"]["isBroken"]
