"""A coordinator on a host of its own, and workers on others, all of which have certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from certificates import Authority
from coordinator_process import Cluster, Coordinator
from networks import Host, Network
from trainers import Trainer

_PORT = 29401


class SiteOfHosts:
    """Hosts, and what runs on them.

    Attributes:
        first: the host of the coordinator.
    """

    def __init__(self, network: Network, cluster: Cluster, folder: Path) -> None:
        self._network = network
        self._cluster = cluster
        self._authority = Authority(folder)
        self._trainers: list[Trainer] = []
        self.first = network.host()
        self._cert, self._key = self._authority.issue(
            "coordinator", "coordinator", address=self.first.address
        )

    def host(self) -> Host:
        """Add a host."""
        return self._network.host()

    def coordinator(self, *options: str) -> Coordinator:
        """Start a coordinator, again at the same address."""
        return self._cluster.coordinator(
            *options,
            *("--tls-cert", self._cert, "--tls-key", self._key, "--tls-ca", str(self._authority.file)),
            listen=f"{self.first.address}:{_PORT}",
            host=self.first,
        )

    def trainer(self, host: Host, number: int, **options: Any) -> Trainer:
        """Start a worker, with its certificate."""
        cert, key = self._authority.issue(f"w{number}", f"w{number}", address=host.address)
        credentials = {"ca": str(self._authority.file), "cert": cert, "key": key}
        address = f"{self.first.address}:{_PORT}"
        self._trainers.append(Trainer(address, number, host, credentials=credentials, **options))
        return self._trainers[-1]

    def end(self) -> None:
        """Kill all workers."""
        for trainer in self._trainers:
            trainer.kill()
