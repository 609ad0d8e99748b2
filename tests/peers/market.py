"""Starts peers in processes of their own, around one pair of endpoints."""

from pathlib import Path
from typing import Any

import stamp
from process import HERE, Process, Zygote
from segments import remove
from waiting import WATCHDOG_S, eventually

import softs_fast


def take(client: softs_fast.Client, checker: stamp.Checker, n: int = 1, product: str = "p1") -> None:
    """Take, check and release n samples."""

    def one() -> bool:
        slot = client.request_sample(product, timeout_ms=1000)
        if slot is None:
            return False
        assert checker.check(client.medium.read(slot), product) is None
        client.release_slot(slot)
        return True

    for _ in range(n):
        eventually(one, lambda: client.diagnose(product, WATCHDOG_S), every_s=0)


def zygote(package: str = "softs_fast", path: str | None = None) -> Zygote:
    """The process that forks peers of a package."""
    return Zygote.of(HERE / "role.py", package, path)


class Market:
    """Endpoints, and the processes around them."""

    def __init__(self, folder: Path, slot_size: int = 128, medium: str = "shm") -> None:
        self.folder = folder
        self.frontend, self.backend = f"ipc://{folder}/f", f"ipc://{folder}/b"
        self.slot_size, self.medium = slot_size, medium
        self._processes: list[Process] = []
        self._segments: list[str] = []
        self._n_files = 0

    def start(
        self, role: str, options: dict[str, Any], package: str = "softs_fast", path: str | None = None
    ) -> Process:
        """Start a peer and wait until it is ready."""
        process = zygote(package, path).fork(role, {"package": package, **options})
        self._processes.append(process)
        process.ready = process.event("ready")
        if (package, role, self.medium) == ("softs", "client", "shm"):
            self._segments.append(process.ready["address"])
        return process

    def broker(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A broker."""
        return self.start(
            "broker", {"frontend": self.frontend, "backend": self.backend, **options}, package, path
        )

    def supplier_options(self, **options: Any) -> dict[str, Any]:
        """What a supplier is started with."""
        defaults = {
            "endpoint": self.backend,
            "patterns": ["p.*"],
            "medium": self.medium,
            "slot_size": self.slot_size,
        }
        return defaults | options

    def supplier(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A supplier."""
        return self.start("supplier", self.supplier_options(**options), package, path)

    def client(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A client."""
        defaults: dict[str, Any] = {
            "endpoint": self.frontend,
            "medium": self.medium,
            "slot_size": self.slot_size,
            "n_slots": 4,
            "n_samples": 100,
            "product": "p1",
        }
        if self.medium == "file":
            self._n_files += 1
            defaults["settings"] = {"address": str(self.folder / f"slots{self._n_files}")}
        return self.start("client", defaults | options, package, path)

    def open_client(self, n_slots: int = 4, **options: Any) -> softs_fast.Client:
        """A client in this process, by shared memory."""
        return softs_fast.Client(self.frontend, softs_fast.ShmMedium, self.slot_size, n_slots, **options)

    def end(self) -> None:
        """End all processes, clients first, the broker last; remove what those of softs leave."""
        order = {"client": 0, "supplier": 1, "broker": 2}
        for process in sorted(self._processes, key=lambda p: order[p.role]):
            process.end()
        remove(self._segments)
