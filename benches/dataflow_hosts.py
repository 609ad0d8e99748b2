"""Rows from one host to another: `python -m benches.dataflow_hosts [ROUNDS]`, over loopback.

One process puts 8,192 rows of different lengths in two columns; another, which says that it is on another host, reads all
of them, in turns: `get` (copies for a function), `fetch` (into its own store, for all workers of its host). Beside them
the same bytes through a plain socket into new memory, and the same rows through shared memory: nothing else is plain. Times
are elapsed, and those of the processor of both processes; medians of the rounds.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from softs_fast.dataflow.store import DataManager, HostLinks, Places, segments
from softs_fast.trust import Der, TlsFiles, write_token

from .dataflow_store import COLUMNS, ROWS, rows

_WAYS = ("plain socket", "get", "fetch", "shared memory")


def new_credentials() -> Der:
    """Return what both processes show each other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "token")
        write_token(path)
        found = TlsFiles(token_file=path).der()
    assert found is not None
    return found


def read(connection: Connection, shown: Der) -> None:
    """Read what the other process says, check it, and answer with seconds: elapsed, and of the processor."""
    torch.set_num_threads(1)
    expected = rows()
    gc.freeze()
    with mock.patch.object(segments, "boot_id", return_value="another host"):
        far = DataManager(1, max_bytes=1 << 29, links=HostLinks(shown))
    near = DataManager(2, max_bytes=1 << 20)
    connection.send("ready")
    while (said := connection.recv()) is not None:
        way, wire, port, n_bytes = said
        plain = socket.create_connection(("127.0.0.1", port)) if way == "plain socket" else None
        places = [Places.from_wire(one) for one in wire]
        began, used = time.perf_counter(), time.process_time()
        if plain is not None:
            _receive(plain, n_bytes)
            found: list[Any] = []
        elif way == "get":
            found = [far.get(one) for one in places]
        elif way == "fetch":
            found = [far.fetch(name, range(ROWS), one) for name, one in zip(COLUMNS, places, strict=True)]
        else:
            found = [near.get(one) for one in places]
        seconds = time.perf_counter() - began, time.process_time() - used
        if way == "fetch":
            found = [far.get(one) for one in found]
        for name, values in zip(COLUMNS, found, strict=False):
            assert all(map(torch.equal, values, expected[name])), name
        del found
        far.free(range(ROWS))
        if plain is not None:
            plain.close()
        connection.send(seconds)
    far.close()
    near.close()


def _receive(peer: socket.socket, n_bytes: int) -> None:
    memory = memoryview(torch.empty(n_bytes, dtype=torch.uint8).numpy())
    peer.sendall(b"\0")
    done = 0
    while done < n_bytes:
        done += peer.recv_into(memory[done:])


def serve(server: socket.socket, whole: memoryview) -> None:
    """Send the bytes once to each that connects."""
    while True:
        peer, _ = server.accept()
        with peer:
            if peer.recv(1):
                peer.sendall(whole)


def measure(rounds: int) -> tuple[int, dict[str, tuple[float, float]]]:
    """Return the bytes, and by way the milliseconds: elapsed, and of the processors."""
    data, shown = rows(), new_credentials()
    whole = memoryview(torch.cat([one.view(torch.uint8) for name in COLUMNS for one in data[name]]).numpy())
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(server, whole), daemon=True).start()
    here, there = multiprocessing.Pipe()
    reader = multiprocessing.get_context("spawn").Process(target=read, args=(there, shown))
    reader.start()
    here.recv()
    gc.freeze()
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    with DataManager(0, max_bytes=1 << 29, links=HostLinks(shown)) as store:
        for _ in range(rounds + 1):
            for way in _WAYS:
                wire = [store.put(name, range(ROWS), data[name]).as_wire() for name in COLUMNS]
                used = time.process_time()
                here.send((way, wire, server.getsockname()[1], len(whole)))
                elapsed, theirs = here.recv()
                times[way].append((elapsed, theirs + time.process_time() - used))
                store.free(range(ROWS))
    here.send(None)
    reader.join()
    # The first round allocates memory.
    return len(whole), {
        way: (
            statistics.median(one[0] for one in some[1:]) * 1e3,
            statistics.median(one[1] for one in some[1:]) * 1e3,
        )
        for way, some in times.items()
    }


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    n_bytes, times = measure(rounds)
    print(f"{ROWS} rows x 2 columns, {n_bytes / (1 << 20):.1f} MiB; medians of {rounds}; load {load:.1f}")
    for way, (elapsed_ms, used_ms) in times.items():
        rate = n_bytes / elapsed_ms / 1e3
        print(f"{way:<14} {elapsed_ms:8.1f} ms {rate:8.0f} MB/s   processor {used_ms:8.1f} ms")


if __name__ == "__main__":
    main()
