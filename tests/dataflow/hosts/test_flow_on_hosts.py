"""Flows of which the workers are on several hosts: the same bits, and each host gets each value once."""

from __future__ import annotations

import os
import re
import socket
from contextlib import closing
from pathlib import Path

import host_flow
import pytest
from flows import ROWS, calls_of, make_flow, summary
from host_workers import HostWorkers, on_hosts, told
from token_files import credentials
from waiting import free_ports

import softs_fast.dataflow as df
from softs_fast.dataflow.link.stream import MasterStream, listen_at
from softs_fast.dataflow.workers import host_processes
from softs_fast.errors import ConfigError, FlowError


def listening(pid: int) -> set[str]:
    """Return the IPv4 addresses at which a process listens."""
    targets = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    found = [line[1].split(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in targets]
    return {socket.inet_ntoa(bytes.fromhex(one)[::-1]) for one in found}


def test_the_same_numbers_and_digests_as_in_one_process(tmp_path: Path) -> None:
    expected = summary(make_flow(), 4)
    with on_hosts(tmp_path, "flows:make_flow", ("", "far", "far")) as (flow, _):
        assert calls_of(flow.steps(4)) == expected


def test_each_host_gets_each_value_once(tmp_path: Path) -> None:
    n_steps, expected = 3, summary(host_flow.make_flow(), 3)
    with on_hosts(tmp_path, "host_flow:make_flow", ("far", "far", "third")) as (flow, _):
        assert calls_of(flow.steps(n_steps)) == expected
        backend = flow._backend
        # Half of what /dev/shm had free on the host with the least; workers say it when they begin.
        free = backend._hosts._free_bytes  # type: ignore[attr-defined]
        assert flow._session.admission.max_bytes <= min(free.values()) // 2  # type: ignore[operator]
        n_told, sent = told(flow), backend._store._links.sent_bytes  # type: ignore[attr-defined]
        for one in flow.ask("inside").values():
            assert listening(one["pid"]) == {"127.0.0.1"}, "the master listens on loopback alone"
        # Rows that have gone have no copies anywhere.
        flow.clear_data_cache(range(10_000))
        while flow._session.runner.advance(automatic=False):
            pass
        assert backend._store.n_bytes == 0  # type: ignore[attr-defined]
        assert not flow._session.runner.held._groups
    # y has 12 bytes for each of its lengths, text one for each character; two hosts have no other way to them.
    rows = [i % 5 + 1 for i in range(n_steps * ROWS)]
    least = 2 * (12 * sum(rows) + sum(i % ROWS % 3 for i in range(len(rows))))
    assert n_told == least
    n_reads = 2 * 2 * n_steps
    assert least < sent < least + 200 * n_reads


def test_one_place_names_the_master_and_the_token_for_both_ends(tmp_path: Path) -> None:
    """The first of the workers' two hosts accepts connections and says nothing, as a stopped process does."""
    here = f"127.0.0.1:{free_ports()[0]}"
    query = f"ppo?token_file={tmp_path / 'token'}"
    expected = summary(host_flow.make_flow(1), 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        theirs = f"softs://127.0.0.1:{silent.getsockname()[1]},{here}/{query}"
        with (
            HostWorkers(tmp_path, "host_flow:make_flow", {"n_workers": 1}, listen=theirs, hosts=("",)),
            df.Flow.on_hosts(
                "host_flow:make_flow", {"n_workers": 1}, listen=f"softs://{here}/{query}"
            ) as flow,
        ):
            assert calls_of(flow.steps(2)) == expected


def test_each_host_gets_weights_once(tmp_path: Path) -> None:
    n_steps, expected = 3, summary(host_flow.make_followers(), 3)
    with on_hosts(tmp_path, "host_flow:make_followers", ("", "far", "far")) as (flow, _):
        assert calls_of(flow.steps(n_steps)) == expected
        # x has 4 bytes; the weights have 24, and 8 at the next multiple of 64. They go once before the first step.
        assert told(flow) == 4 * n_steps * ROWS + 72 * (n_steps + 1)


def test_another_flow_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "host_flow:make_flow", {"n_workers": 2}) as workers:
        workers.start(1, n_workers=3)
        match = r"(?s)worker 1 of host .* cannot begin: ConfigError: worker 1 has built another flow than its master; line"
        with pytest.raises(FlowError, match=match), workers.flow():
            pass
        assert "has built another flow than its master" in workers.log(1)


def test_workers_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_processes, "_PROGRESS_S", 0.0)
    with HostWorkers(tmp_path, "host_flow:make_flow") as workers:
        text = r"workers 0, 1, 2 of 0, 1, 2 have not begun after \d+ s at tcp://127.0.0.1:\d+; of these 0, 1, 2 have not"
        flow = workers.flow(start_timeout_s=1)
        with pytest.raises(FlowError, match=text), flow:
            pass
    assert any(re.search(text, one.message) for one in caplog.records)


def test_a_worker_with_another_token_ends_with_the_reason(tmp_path: Path) -> None:
    with (
        HostWorkers(tmp_path, "host_flow:make_flow") as workers,
        closing(MasterStream(listen_at(workers.endpoint, credentials("b")))),
    ):
        workers.start(1)
        assert "it does not have the token of this host; give both the same token file" in workers.log(1)


def test_what_cannot_be_a_flow_on_hosts_is_refused(tmp_path: Path) -> None:
    workers = HostWorkers(tmp_path, "host_flow:make_flow")
    workers.endpoint, port = "ipc://*", workers.endpoint
    with pytest.raises(ConfigError, match=r"address of master is 'ipc://\*'; expected tcp://HOST:PORT"):
        workers.flow()
    workers.endpoint = "softs://127.0.0.1:1,127.0.0.1:2"
    with pytest.raises(ConfigError, match=r"place of master: expected one host, got 127\.0\.0\.1:1 and"):
        workers.flow()
    workers.endpoint = port
    for name in ("start_timeout_s", "lost_after_s"):
        with pytest.raises(ConfigError, match=f"{name} must be above 0"):
            workers.flow(**{name: 0})
    workers.token.chmod(0o644)
    with pytest.raises(ConfigError, match="must be a file of this user with mode 0600"):
        workers.flow()
