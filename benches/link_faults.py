"""How long an ordered stream stands still when something of one of two teachers' hosts ends: ``python -m benches.link_faults``.

Three hosts, in network namespaces: a student's, and two with a broker, a link and two suppliers each, in processes of their own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

import softs_fast as sf
from benches.fleet_hosts import await_file, on_host
from benches.machine import REPOSITORY, describe_commit, describe_machine
from softs_fast.trust import TlsFiles, write_token

if TYPE_CHECKING:
    from networks import Host

CONFIG = sf.BatchConfig([sf.TensorSpec("x", (48 << 10,), "uint8")])
CALL_S, N_SUPPLIERS, PORT, ROUNDS = 0.005, 2, 4700, 5
#: Before the fault, and after it, seconds.
CALM_S, WATCHED_S = 2.0, 4.0


def endpoints_of(folder: Path) -> sf.EndpointConfig:
    """Return where the broker of a host is."""
    return sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")


def serve(folder: Path) -> None:
    """Be the broker of a host."""
    note(folder / "broker")
    with sf.Broker(endpoints_of(folder)):
        signal.pause()


def supply(folder: Path, number: int) -> None:
    """Be a supplier of a host."""

    def make(product: str, n: int) -> dict[str, Any]:
        time.sleep(CALL_S)
        return {"x": np.ones((n, 48 << 10), np.uint8)}

    note(folder / f"supplier{number}")
    endpoints = endpoints_of(folder)
    with sf.Supplier(
        batch_generator_fn=make,
        product_ids=["p"],
        endpoint=endpoints.backend,
        batch_config=CONFIG,
        max_batch=4,
    ):
        signal.pause()


def join(folder: Path, token: TlsFiles, connect: list[str]) -> None:
    """Be the link of a host."""
    note(folder / "link")
    with sf.HostLink(endpoints_of(folder), connect=connect, credentials=token) as link:
        link.wait()


def study(folder: Path, token: TlsFiles, place: str) -> None:
    """Be the broker, the link and the loader of the student's host, and write when each batch came."""
    times = []
    endpoints = endpoints_of(folder)
    with (
        sf.Broker(endpoints),
        sf.HostLink(endpoints, listen=place, credentials=token),
        sf.SoftDataLoader(
            "p", endpoints.frontend, CONFIG, num_slots=64, batch_size=4, ordered=True
        ) as loader,
    ):
        for _ in loader:
            times.append(time.monotonic())
            (folder / "began").touch()
            if (folder / "stop").exists():
                break
    (folder / "new").write_text(json.dumps(times))
    (folder / "new").rename(folder / "times")


def note(path: Path) -> None:
    """Write the number that this process has on its host."""
    path.write_text(str(os.getpid()))


def send_signal(host: Host, folder: Path, name: str, number: int) -> None:
    """Send a signal to a process of a host."""
    subprocess.run([*host.prefix(), "--pid", "kill", f"-{number}", (folder / name).read_text()], check=True)


#: What happens to a teachers' host.
FAULTS: dict[str, Callable[[Host, Path], None]] = {
    "nothing": lambda host, folder: None,
    "a supplier is killed": lambda host, folder: send_signal(host, folder, "supplier0", signal.SIGKILL),
    "its link is killed": lambda host, folder: send_signal(host, folder, "link", signal.SIGKILL),
    "its link is stopped": lambda host, folder: send_signal(host, folder, "link", signal.SIGSTOP),
    "its broker is killed": lambda host, folder: send_signal(host, folder, "broker", signal.SIGKILL),
    "it is cut off": lambda host, folder: host.cut(),
}


def pause(fault: Callable[[Host, Path], None]) -> float:
    """Return the longest time between two batches after a fault, seconds."""
    from networks import Network

    with TemporaryDirectory(prefix="lf") as name, Network() as network:
        write_token(Path(name, "token"))
        token = TlsFiles(token_file=Path(name, "token"))
        hosts = [network.host() for _ in range(3)]
        folders = [Path(name, str(number)) for number in range(3)]
        place = f"{hosts[0].address}:{PORT}"
        for folder in folders:
            folder.mkdir()
        on_host(hosts[0], study, folders[0], token, place)
        for host, folder in zip(hosts[1:], folders[1:], strict=True):
            on_host(host, serve, folder)
            for number in range(N_SUPPLIERS):
                on_host(host, supply, folder, number)
            on_host(host, join, folder, token, [place])
        await_file(folders[0] / "began")
        time.sleep(CALM_S)
        at = time.monotonic()
        fault(hosts[1], folders[1])
        time.sleep(WATCHED_S)
        (folders[0] / "stop").touch()
        await_file(folders[0] / "times")
        times = json.loads((folders[0] / "times").read_text())
        watched = [moment for moment in times if moment > at]
        return max(later - earlier for earlier, later in itertools.pairwise([at, *watched]))


def main() -> None:
    """Measure and print."""
    sys.path.insert(0, str(REPOSITORY / "tests" / "peers"))
    print(describe_commit()["hash"][:9], describe_machine())
    pauses: dict[str, list[float]] = {what: [] for what in FAULTS}
    for _ in range(ROUNDS):
        for what, fault in FAULTS.items():
            pauses[what].append(1e3 * pause(fault))
    print("| of one of two teachers' hosts | the stream stands still for, ms: median, most |\n|---|---|")
    for what, found in pauses.items():
        print(f"| {what} | {statistics.median(found):.0f}, {max(found):.0f} |")


if __name__ == "__main__":
    main()
