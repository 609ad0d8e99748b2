"""Two hosts with two workers each, in network namespaces: nothing but TCP is between them, and a link is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flows
import host_flow
import networks
import pytest
import ranks
from flow_processes import in_meeting
from flows import summary
from host_workers import HostWorkers
from masters import run_master

PORT = 29_471


@pytest.fixture
def hosts() -> Iterator[list[networks.Host]]:
    if reason := networks.why_not():
        pytest.skip(reason)
    with networks.Network() as net:
        yield [net.host(), net.host()]


def begin(
    hosts: list[networks.Host], folder: Path, function: str, n_workers: int, n_steps: int, **more: Any
) -> tuple[HostWorkers, Any]:
    """Start a master and half of the workers on the first host, the other half on the second one."""
    workers = HostWorkers(folder, function, listen=f"tcp://{hosts[0].address}:{PORT}")
    workers.arguments = {"n_workers": n_workers}
    options = {
        "arguments": workers.arguments,
        "listen": workers.endpoint,
        "token_file": str(workers.token),
        "rejoin_timeout_s": 0.0,
        **more,
    }
    master = ranks.start(run_master, 1, hosts[0].pid, function, options, n_steps)
    for worker in range(n_workers):
        workers.start(worker, host=hosts[worker * 2 // n_workers])
    return workers, master


@pytest.mark.parametrize(
    ("module", "n_workers"), [(host_flow, 4), pytest.param(flows, 3, marks=pytest.mark.full)]
)
def test_two_hosts_have_the_bits_of_one_process(
    hosts: list[networks.Host], tmp_path: Path, module: Any, n_workers: int
) -> None:
    expected = summary(module.make_flow(n_workers=n_workers), 3)
    workers, master = begin(hosts, tmp_path, f"{module.__name__}:make_flow", n_workers, 3)
    with workers:
        try:
            assert master.results() == [expected]
        finally:
            master.stop()


def test_gradients_over_two_hosts_have_the_bits_of_one(hosts: list[networks.Host], tmp_path: Path) -> None:
    """Ranks listen at the address by which a worker reaches the master."""
    flow, _ = in_meeting("parallel_flow", "make_ddp")
    expected = summary(flow, 3)
    workers, master = begin(hosts, tmp_path, "parallel_flow:make_ddp", 2, 3)
    with workers:
        try:
            assert master.results() == [expected]
        finally:
            master.stop()


def test_a_host_that_is_cut_off_ends_the_flow(hosts: list[networks.Host], tmp_path: Path) -> None:
    workers, master = begin(hosts, tmp_path, "host_flow:make_flow", 2, 0, lost_after_s=4.0)
    with workers:
        try:
            assert master.results() == [1]
            hosts[1].cut()
            [error] = master.results()
            assert "worker 1 is lost" in error or "rows of worker" in error, error
        finally:
            master.stop()
            workers.processes[1].kill()
