"""Roles on several workers of several hosts: the bits of one host, weights between layouts, deaths, and what is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import parallel_flow
import pytest
import sharded_flow
from flow_processes import in_meeting
from host_workers import HostWorkers

import softs_fast.dataflow as df
from softs_fast.dataflow.process.interfaces import interface_of
from softs_fast.dataflow.workers.host_meeting import HostMeeting, check_groups
from softs_fast.errors import ConfigError


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """The first store of a process makes a pipe for signals, which libuv keeps as long as the process."""
    HostMeeting("127.0.0.1").close()


def results(flow: df.Flow, n_steps: int) -> list[Any]:
    with flow:
        return [
            sorted((call.function, call.ids, call.digest, call.numbers) for call in step.calls)
            for step in flow.steps(n_steps)
        ]


@pytest.mark.parametrize(
    ("layout", "names"), [("dp2", ("", "far")), ("dp2 tp2", ("far", "third", "far", "third"))]
)
def test_gradients_over_hosts_have_the_bits_of_one_host(
    tmp_path: Path, layout: str, names: tuple[str, ...]
) -> None:
    arguments: dict[str, Any] = {"layout": layout, "n_workers": len(names)}
    flow, _ = in_meeting("parallel_flow", "make_ddp", **arguments)
    expected = results(flow, 3)
    with HostWorkers(tmp_path, "parallel_flow:make_ddp", arguments) as workers:
        for worker, name in enumerate(names):
            workers.start(worker, name)
        assert results(workers.flow(), 3) == expected


def test_sharded_weights_go_between_hosts(tmp_path: Path) -> None:
    expected = results(sharded_flow.make_sharded(), 3)
    with HostWorkers(tmp_path, "sharded_flow:make_sharded") as workers:
        for worker, name in enumerate(("", "far", "far", "third")):
            workers.start(worker, name)
        found = results(workers.flow(), 3)
    # Digests are those of parts of the rows.
    assert [[(one[0], one[3]) for one in step] for step in found] == [
        [(one[0], one[3]) for one in step] for step in expected
    ]


def test_replicas_of_a_host_get_each_row_once(tmp_path: Path) -> None:
    n_steps, rows = 2, 8
    with HostWorkers(tmp_path, "parallel_flow:make_ddp", {"layout": "dp1 tp2", "n_workers": 2}) as workers:
        for worker in range(2):
            workers.start(worker, "far")
        with workers.flow() as flow:
            list(flow.steps(n_steps))
            # A row has three floats, 64 bytes with its serial number; what the workers make stays on their host.
            told = flow._runner.held.n_bytes
    assert told == n_steps * rows * 3 * 4


def test_all_begin_anew_with_new_groups(tmp_path: Path) -> None:
    """A peer of the one that is killed may be in a collective call with it; the journal has one folder for all."""
    arguments = {"folder": str(tmp_path / "j")}
    with HostWorkers(tmp_path, "journal_flow:make_ranks", arguments) as workers:
        for worker, name in enumerate(("", "far")):
            workers.start(worker, name, again=True)
        losses: dict[int, float] = {}
        with workers.flow() as flow:
            for step in flow.steps(4):
                if step.number == 3 and not step.repeated:
                    os.kill(flow.ask("inside")[1]["pid"], signal.SIGKILL)
                losses[step.number] = step["actor.train"]["loss"]
    undisturbed, _ = in_meeting("journal_flow", "make_ranks", folder=str(tmp_path / "undisturbed"))
    with undisturbed:
        assert {step.number: step["actor.train"]["loss"] for step in undisturbed.steps(4)} == losses


def test_other_hosts_need_a_word(tmp_path: Path) -> None:
    workers = HostWorkers(tmp_path, "parallel_flow:make_ddp", {}, listen="tcp://0.0.0.0:0")
    with pytest.raises(
        ConfigError, match=r"roles on several workers: gen, actor; .* say allow_insecure=True"
    ):
        workers.flow()
    assert workers.flow(allow_insecure=True).declaration.workers == (0, 1)
    check_groups(parallel_flow.make_ddp("dp1", 1).declaration, "tcp://0.0.0.0:0", is_allowed=False)
    check_groups(parallel_flow.make_ddp().declaration, "tcp://127.0.0.1:0", is_allowed=False)


def test_a_store_listens_at_the_address_of_the_master_alone() -> None:
    meeting = HostMeeting("127.0.0.1")
    port = f":{meeting.port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    lines += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()]
    listening = [line[1] for line in lines if line[3] == "0A" and line[1].endswith(port)]
    assert listening == [f"0100007F{port}"]
    meeting.close()
    meeting.close()
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1 for process groups: Cannot assign"):
        HostMeeting("192.0.2.1")


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.9") == interface_of("::1") == "lo"
    with pytest.raises(ConfigError, match=r"no network interface has 192\.0\.2\.1 .* GLOO_SOCKET_IFNAME"):
        interface_of("192.0.2.1")
