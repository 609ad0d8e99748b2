"""Every handle that a user can hold, in a fork of the process that made it: it works there, or raises ForkedError at once."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from coordinator_process import Coordinator
from fork_check import check_fork
from held_in_fork import hold

import softs_fast as sf

# Python 3.12 and later warn about a fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.timeout(240)  # sixty forks, and the starts of a fleet and of a flow
def test_no_handle_hangs_in_a_fork_or_harms_its_owner(short_path: Path) -> None:
    coordinator = Coordinator("--listen", "127.0.0.1:0", "--world-size", "1").started()
    seen = set()
    # Not this process: a test before may have used gRPC, which does not bear a fork.
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    holder = context.Process(target=hold, args=(there, short_path, coordinator.address))
    holder.start()
    there.close()
    try:
        with here, suppress(EOFError):
            while True:
                name, outcomes, afterwards = here.recv()
                seen.add(name)
                assert afterwards == "works", name
                for use, told in outcomes.items():
                    assert told == "works" or told.startswith("ForkedError: "), (name, use, told)
    finally:
        holder.join()
        status = holder.exitcode
        holder.close()
        coordinator.kill()
    assert status == 0
    assert {"LinkStrategy", "CoordinatorClient", "Fleet", "Flow.in_processes", "RemoteOptimizer"} <= seen


def test_locks_that_other_threads_hold_at_a_fork_are_not_waited_for_there(
    frontend: str, backend: str
) -> None:
    done = threading.Event()
    with (
        sf.Broker(sf.EndpointConfig(frontend, backend)),
        sf.Supplier(lambda product: b"a sample", ["m"], backend, slot_size=8) as supplier,
        sf.Client(frontend, sf.ShmMedium, 8, 4) as client,
    ):

        def call(poll: Callable[[int], object]) -> None:
            while not done.is_set():
                poll(0)

        # Each holds the lock of its handle in native code, without the GIL, for most of the time.
        polls = (supplier._core.hello, client.poll_completions)
        threads = [threading.Thread(target=call, args=(poll,)) for poll in polls]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                check_fork(supplier.hello, then=supplier.stop)
                check_fork(lambda: client.n_blocks_held, then=client.close)
        finally:
            done.set()
            for thread in threads:
                thread.join()
