"""A broker here, and teachers and students in processes of their own."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from process import Process, Zygote

from softs_fast import Broker, EndpointConfig


def zygote() -> Zygote:
    """The process that forks teachers and students."""
    return Zygote.of(Path(__file__).with_name("cuda_peer.py"))


class CudaMarket:
    """A broker, and the teachers and students that use it."""

    def __init__(self, folder: Path) -> None:
        self.endpoints = EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
        self._broker = Broker(self.endpoints)
        self._broker.start()
        self._peers: list[Process] = []

    def teacher(
        self, *serves: dict[str, Any], environment: dict[str, str] | None = None, **options: Any
    ) -> Process:
        """A teacher that serves what it is told, once it is ready; see `serve`."""
        defaults = {"point": None, "n_before": 0, "medium": "cuda"}
        options = {**defaults, "backend": self.endpoints.backend, "serves": serves, **options}
        peer = zygote().fork("teacher", options, environment)
        self._peers.append(peer)
        peer.event("ready")
        return peer

    def helper_after(self, mortal: Process, *serves: dict[str, Any]) -> threading.Thread:
        """Start another teacher once one has died, in a thread to be joined."""

        def help_out() -> None:
            assert mortal.wait() == -signal.SIGKILL
            self.teacher(*serves)

        thread = threading.Thread(target=help_out)
        thread.start()
        return thread

    def student(self, environment: dict[str, str] | None = None, **options: Any) -> Process:
        """A student in a process of its own."""
        options = {"frontend": self.endpoints.frontend, **options}
        peer = zygote().fork("student", options, environment)
        self._peers.append(peer)
        return peer

    def end(self) -> None:
        """All of it."""
        for peer in self._peers:
            peer.end()
        self._broker.stop()


def serve(
    config: str,
    kind: str = "sample",
    *,
    where: str = "device",
    device: int = 0,
    wide: bool = False,
    product: str = "p",
) -> dict[str, Any]:
    """What a teacher serves: by which kind of function, from tensors that are where, and whether of floats that are to be cast."""
    return {
        "product": product,
        "config": config,
        "kind": kind,
        "where": where,
        "device": device,
        "wide": wide,
    }
