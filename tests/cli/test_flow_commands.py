"""``softs-fast top`` and ``status`` for flows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from market import Market
from shell import Command

from softs_fast import _core
from softs_fast.cli.screen import flow_screen, outage
from softs_fast.cli.views import flow_tables
from softs_fast.market.fleet_report import WorkerReport, write_report
from softs_fast.monitoring.flow_status import FlowFunction, FlowView, FlowWorkerView
from softs_fast.records import replace

FLOW = """
import sys

import torch
import softs_fast.dataflow as df


class Two(df.Role):
    def double(self, rows):
        return {"y": rows["x"] * 2}

    def read(self, rows):
        pass


def numbers():
    while True:
        yield {"x": torch.ones(2)}


role = df.place(Two, name="two")
calls = [df.call(role.double, "x -> y", rows=2), df.call(role.read, "y", rows=4)]
with df.Flow(calls, source=numbers()) as flow:
    for step in flow.steps():
        if step.number == 3:
            print("open", flush=True)
            sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def flow() -> Iterator[dict[str, str]]:
    """A flow that waits in the code of its caller; the environment in which it is found."""
    with tempfile.TemporaryDirectory(prefix="sf") as place:
        environment = {"XDG_RUNTIME_DIR": place, "TMPDIR": place}
        # A fleet of this process, as it says of itself.
        folder = Path(place, "softs-fleet")
        folder.mkdir()
        (folder / "owner").write_text(" ".join(map(str, _core.this_process())))
        workers = [WorkerReport("worker 0", "serving", "Traceback\nboom", 0.0, "2")]
        write_report(folder, workers, "2 to 1 workers, idle")
        script = Path(place, "my_flow.py")
        script.write_text(FLOW)
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "PATH": "/usr/bin"},
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield environment
            process.kill()


def test_top_without_an_endpoint_shows_flows(command: Command, flow: dict[str, str]) -> None:
    status, out, errors = command.run("top", "--once", "--interval", "0.05", **flow)
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("softs-fast top  ")
    assert lines[1] == "1 fleet, 1 flow of this user on this host"
    (row,) = [line.split() for line in lines if line.startswith("ipc:")]
    assert row[1:] == ["serving", "boom", str(os.getpid()), "0", "2"]
    (row,) = [line.split() for line in lines if line.startswith("2 to 1 ")]
    assert row[3:5] == ["workers,", "idle"]
    assert row[5:] == [f"ipc://{flow['TMPDIR']}/softs-fleet/frontend", str(os.getpid())]
    (row,) = [line.split() for line in lines if line.startswith("my_flow.py")]
    assert row[1:7] == ["is", "in", "the", "code", "of", "the"]
    assert row[10:12] == ["3", "0"], "steps, and none a second"
    (function,) = [line.split() for line in lines if line.startswith("two.double")]
    assert function[2:] == ["0", "2", "0", "-"]


def test_top_of_a_market_shows_flows_below(
    command: Command, busy_market: Market, flow: dict[str, str]
) -> None:
    status, out, _ = command.run("top", busy_market.frontend, "--once", "--interval", "0.05", **flow)
    assert status == 0
    heads = [line.split()[0] for line in out.splitlines() if line[:1].isupper()]
    tables = ["CLIENT", "SUPPLIER", "LANE", "FRONTEND", "SCALED", "FLOW", "FUNCTION"]
    assert [head for head in heads if head.isupper()] == tables


def test_stats_has_them_as_text_and_as_json(command: Command, flow: dict[str, str]) -> None:
    status, out, _ = command.run("status", **flow)
    assert status == 0
    assert out.startswith("fleets     1\nflows      1\n")
    status, out, _ = command.run("status", "--json", **flow)
    content = json.loads(out)
    (fleet,) = content["fleets"]
    assert (fleet["pid"], fleet["workers"][0]["threads"]) == (os.getpid(), "2")
    assert fleet["scaled"] == "2 to 1 workers, idle"
    (seen,) = content["flows"]
    assert (seen["name"], seen["steps"], seen["error"]) == ("my_flow.py", 3, "")
    assert [one["name"] for one in seen["functions"]] == ["two.double", "two.read"]


def test_it_goes_on_when_there_is_no_flow(command: Command, short_path: Path) -> None:
    process = command.start(
        "top", "--interval", "0.01", XDG_RUNTIME_DIR=str(short_path), TMPDIR=str(short_path)
    )
    assert process.stdout is not None
    heads = 0
    while heads < 3:
        line = process.stdout.readline()
        assert line
        heads += line.startswith("0 fleets, 0 flows")
    status, _, errors = command.end(process, signal.SIGINT)
    assert (status, errors) == (0, "")


def view(at_s: float, steps: int, **changes: object) -> FlowView:
    functions = (FlowFunction("gen.generate", 1200, 64, 1, 3.25),)
    workers = (
        FlowWorkerView(0, 11, "gen.generate", 7, 3.0, ""),
        FlowWorkerView(1, 12, "", 0, 0.5, "stopped\x1b[2J"),
    )
    seen = FlowView(
        "ppo:make", 10, at_s, 0.0, steps, 0, 0, 0, "waits for workers", 0.0, functions, workers, at_s=at_s
    )
    return replace(seen, **changes)


def test_rates_come_from_two_looks_at_the_same_flow() -> None:
    rows = {}
    for name, before in (
        ("same", view(10.0, 20)),
        ("another", view(11.5, 90, name="x")),
        ("none", None),
        ("again", view(10.0, 5, open_s=99.0)),
    ):
        (_, ((*_, rate, _, _, _, _, _),), _), *_ = flow_tables(
            [before] if before is not None else [], [view(12.0, 25)]
        )
        rows[name] = rate
    assert rows == {"same": "2.50", "another": "-", "none": "-", "again": "-"}


def test_what_flows_say_is_safe_and_fits() -> None:
    tables = flow_tables((), [view(1.0, 2), FlowView.silent(13, "no answer within 2 s", 1.0)])
    lines = flow_screen("2 flows", tables, "12:00:00", 60, 9)
    assert len(lines) <= 9
    assert max(map(len, lines)) <= 60
    text = "\n".join(flow_screen("2 flows", tables, "12:00:00"))
    assert "\x1b" not in text
    assert "stopped\\x1b[2J" in text
    assert "1.20k" in text
    assert "no answer within 2 s" in text
    assert any("gen.generate" in line for line in outage("ipc://x", "no broker", 80, 24, tables))
