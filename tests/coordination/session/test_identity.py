"""What a worker must prove, and what it may do with it: certificates, a token, the user of a process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
from certificates import Authority
from coordinator_process import Cluster, Coordinator
from token_files import token_file

from softs_fast.coordination.credentials import ClientCredentials
from softs_fast.coordination.job.events import Evict
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.errors import ConfigError

URI = "spiffe://job/w1"


class Tls:
    """A coordinator that asks for certificates."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.ours = Authority(folder)
        self.foreign = Authority(folder, "foreign")
        cert, key = self.ours.issue("server", "coordinator")
        self.coordinator = self._start(
            cluster, "--tls-cert", cert, "--tls-key", key, "--tls-ca", str(self.ours.file)
        )

    def credentials(self, name: str, authority: Authority | None = None, **options: Any) -> dict[str, str]:
        cert, key = (authority or self.ours).issue(name, name, **options)
        return {"ca": str(self.ours.file), "cert": cert, "key": key}

    def _start(self, cluster: Cluster, *options: str) -> Coordinator:
        return cluster.coordinator("--world-size", "1", "--lost-after", "2", *options)


@pytest.fixture
def tls(cluster: Cluster, tmp_path: Path) -> Tls:
    return Tls(cluster, tmp_path)


def client(coordinator: Coordinator | str, **credentials: str) -> CoordinatorClient:
    address = coordinator if isinstance(coordinator, str) else coordinator.address
    return CoordinatorClient(
        address, ClientCredentials(**{name: Path(path) for name, path in credentials.items()})
    )


def test_a_worker_is_what_its_certificate_says(cluster: Cluster, tls: Tls) -> None:
    worker = cluster.worker(tls.coordinator, "w0", credentials=tls.credentials("w0"))
    assert worker.event("Table")["epoch"] == 1
    other = cluster.worker(tls.coordinator, "w9", incarnation=2, credentials=tls.credentials("w0"))
    refused = other.event("Refused")
    assert refused["code"] == "identity"
    assert "w0" in refused["text"]
    assert "act for itself only" in refused["text"]


def test_a_uri_comes_before_the_common_name(cluster: Cluster, tls: Tls) -> None:
    worker = cluster.worker(tls.coordinator, URI, credentials=tls.credentials("w0", uri=URI))
    assert worker.event("Table")["epoch"] == 1


def test_files_that_are_replaced_are_used_for_new_connections(cluster: Cluster, tls: Tls) -> None:
    credentials = tls.credentials("w0")
    worker = cluster.worker(tls.coordinator, "w0", credentials=credentials)
    worker.event("Table")
    # Both sides get certificates of another CA, and then meet with them.
    tls.foreign.issue("server", "coordinator")
    tls.foreign.issue("w0", "w0")
    tls.ours.file.write_bytes(tls.foreign.file.read_bytes())
    worker.signal(signal.SIGSTOP)
    with client(tls.coordinator, **tls.credentials("observer", tls.foreign)) as observer:
        for status in observer.watch():
            if status.phase == "fenced":
                break
    worker.signal(signal.SIGCONT)
    assert worker.event("Table")["epoch"] == 2


def test_an_administrator_is_another_identity(cluster: Cluster, tls: Tls) -> None:
    worker = cluster.worker(tls.coordinator, "w0", credentials=tls.credentials("w0"))
    worker.event("Table")
    with client(tls.coordinator, **tls.credentials("w1")) as other:
        assert other.status().phase == "open"
        with pytest.raises(ConfigError, match='"w1" is no administrator'):
            other.administer(Evict(0, "mine"))
    admin = cluster.worker(tls.coordinator, "admin", credentials=tls.credentials("admin"))
    assert "cannot be a worker" in admin.event("over")["text"]
    with client(tls.coordinator, **tls.credentials("admin")) as real:
        assert any("evicted" in line for line in real.administer(Evict(0, "tired")))
    assert worker.event("Refused")["code"] == "evicted"


def test_holders_of_a_token_need_no_certificates(cluster: Cluster, tmp_path: Path) -> None:
    own, other = token_file(tmp_path / "own", "a"), token_file(tmp_path / "other", "b")
    # All addresses of this machine: other machines reach it.
    coordinator = cluster.coordinator("--world-size", "2", listen=f"softs://0.0.0.0:0/job?token_file={own}")
    near = coordinator.address.replace("0.0.0.0", "127.0.0.1")
    # At the first of the two hosts nothing listens.
    place = f"softs://127.0.0.1:1,{near}/job?token_file={own}"
    workers = [cluster.worker(place, f"w{seat}", seat=seat) for seat in range(2)]
    assert [worker.event("Table")["epoch"] for worker in workers] == [1, 1]
    for name, credentials, text in (
        (
            "w2",
            {"token_file": str(other)},
            f"it does not have the token of {other}; give both ends the same token file",
        ),
        ("w3", {}, "it speaks TLS, and this process does not; give --token-file"),
    ):
        ended = cluster.worker(near, name, credentials=credentials).event("over")
        assert text in ended["text"]
        with client(near, **credentials) as stranger, pytest.raises(ConfigError, match=text):
            stranger.status()
    # A new token on the host of the coordinator, then on that of the caller.
    token_file(own, "b", "a")
    for file in (own, other):
        with client(near, token_file=str(file)) as one:
            assert one.status().size == 2
    with (
        client(place.replace("/job", "/other-job")) as one,
        pytest.raises(ConfigError, match='expected job "other-job", got "job"; nothing was done'),
    ):
        one.administer(Evict(0, "one of another job"))
    with client(place) as one:
        assert any("evicted" in line for line in one.administer(Evict(0, "each holder may")))
    assert workers[0].event("Refused")["code"] == "evicted"


def test_a_client_asks_whether_others_reach_the_address() -> None:
    with pytest.raises(
        ConfigError,
        match=r"coordinator at 192\.0\.2\.1:1 is reachable .* without TLS; give --token-file or --tls-ca$",
    ):
        CoordinatorClient("192.0.2.1:1")
