"""``softs-fast top --web``: the page of a market and of a job."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from market import Market
from shell import Command, Run
from waiting import WATCHDOG_S, eventually

#: Of each chart its caption and its labels, once two of them have a line of two points.
CHARTS = """[...document.querySelectorAll("polyline")].filter((one) => one.points.length > 1).length > 1
    && document.querySelector("pre").textContent.includes("1 client")
    && [...document.querySelectorAll("figure")].map((one) => [
        one.querySelector("figcaption").textContent, [...one.querySelectorAll("text")].map((text) => text.textContent)])"""


def served(command: Command, *arguments: str) -> str:
    """Start the command; the URL of its page."""
    process = command.start("top", *arguments, "--web", "127.0.0.1:0", "--interval", "0.2")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("page http://127.0.0.1:"), (line, process.stderr and process.stderr.read())
    return line.removeprefix("page ").strip()


def now(url: str) -> Any:
    """What the page asks for."""
    with urllib.request.urlopen(f"{url}now.json", timeout=WATCHDOG_S) as answer:
        return json.load(answer)


def values(url: str) -> dict[str, float | None]:
    """The numbers of the charts."""
    return {chart["name"]: chart["value"] for chart in now(url)["charts"]}


def test_a_market(busy_market: Market, command: Command) -> None:
    url = served(command, busy_market.frontend)
    assert "1 client, 1 supplier" in now(url)["text"]
    # The first look compares with none.
    eventually(lambda: values(url)["samples to clients on this machine"] is not None)
    busy_market.end()
    eventually(lambda: "Trying again." in now(url)["text"])


def test_a_site_that_calls_this_machine_by_a_name_of_its_own_reads_nothing(command: Command) -> None:
    url = served(command)
    for host, status in (("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("localhost:80", 200)):
        asked = urllib.request.Request(f"{url}now.json", headers={"Host": host})
        try:
            with urllib.request.urlopen(asked, timeout=WATCHDOG_S) as answer:
                found = answer.status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status, host


def test_fleets_and_flows_without_a_broker(command: Command) -> None:
    assert list(values(served(command))) == ["steps of flows"]


def test_a_coordinator(command: Command) -> None:
    pytest.importorskip("grpc", reason="needs the extra grpc")
    coordinator = command.start("coordinator", "run", "--world-size", "2", "--listen", "127.0.0.1:0")
    assert coordinator.stdout is not None
    address = coordinator.stdout.readline().removeprefix("coordinator ").strip()
    url = served(command, address)
    assert now(url)["text"].startswith('job "job" is')
    assert values(url)["ranks"] == 0
    coordinator.kill()
    assert now(url)["charts"] == [] or eventually(lambda: now(url)["charts"] == [])
    assert address in now(url)["text"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--web", "0.0.0.0:0"], "listen at 127.0.0.1"),
        (["--allow-insecure"], "--allow-insecure is for --web"),
        (["127.0.0.1:1"], "softs-fast status 127.0.0.1:1 --watch"),
        (["--web", "127.0.0.1:0", "--token-file", "none"], "are for a coordinator"),
    ],
)
def test_what_is_refused(run: Run, arguments: list[str], told: str) -> None:
    status, _, errors = run("top", *arguments)
    assert status
    assert told in errors


@pytest.mark.skipif(
    importlib.util.find_spec("PyQt6") is None, reason="needs the extra browser: PyQt6-WebEngine"
)
def test_a_browser_draws_it(busy_market: Market, command: Command, tmp_path: Path) -> None:
    url = served(command, busy_market.frontend)
    browser = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("page_process.py"), url, CHARTS],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu --no-sandbox",
            "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path),
        },
    )  # fmt: skip
    watchdog = threading.Timer(WATCHDOG_S, browser.kill)
    watchdog.start()
    out, errors = browser.communicate()
    watchdog.cancel()
    assert browser.returncode == 0, errors
    found = json.loads(out.splitlines()[-1])
    assert found["console"] == []
    captions = {caption.partition(" ")[2]: labels for caption, labels in found["seen"]}
    assert captions["% of the time clients wait"][-1] == "now"
    assert all(labels[0] in ("0", "0%") for _, labels in found["seen"])
