"""Windows between processes: nothing torn is ever read, whatever happens to the writer, and nothing is left behind."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

from softs_fast.errors import SegmentError
from softs_fast.snapshots import RemoteWindow, SnapshotLayout, Window, average


def model(items: int, value: float) -> dict[str, torch.Tensor]:
    """Tensors of different dtypes with one value everywhere, so that a torn read is seen."""
    return {
        "a": torch.full((items,), float(value)),
        "b": torch.full((items // 3,), value, dtype=torch.float64),
        "n": torch.full((items // 5,), int(value)),
        "z": torch.full((7,), float(value)),
    }


def value_of(version: int) -> int:
    """Return what the tensors of a version hold: means over 16 donors are exact in float32."""
    return version % (1 << 20)


def publishes_for_ever(
    say: Callable[[Any], None], rank: int, size: int, items: int, longest_pause_s: float
) -> None:
    chance = random.Random(rank)
    tensors = model(items, 0)
    with Window(SnapshotLayout.of(tensors)) as window:
        say(window.address)
        version = 0
        while True:
            version += 1
            for tensor in tensors.values():
                tensor.fill_(value_of(version))
            assert window.publish(tensors, step=version, metric=version / 2, trained=3 * version) == version
            if longest_pause_s and chance.random() < 0.25:
                time.sleep(chance.uniform(0, longest_pause_s))


def read_constantly(n_reads: int, n_donors: int, items: int, longest_pause_s: float = 0.0) -> tuple[int, int]:
    """Read windows that are published constantly; return the numbers of complete reads, and of those given up.

    Each window is a donor four times, so that a read takes as long as several versions. Where it takes longer than two
    versions for certain, no read is ever complete but in a pause of the writers.
    """
    running = ranks.start(publishes_for_ever, n_donors, items, longest_pause_s)
    remotes: list[RemoteWindow] = []
    try:
        into = model(items, 0)
        layout = SnapshotLayout.of(into)
        scratch = layout.scratch()
        remotes += [RemoteWindow.open(address) for address in running.results() for _ in range(4)]
        weights = [1 / len(remotes)] * len(remotes)  # exact, as are the means
        complete = given_up = 0
        while complete < n_reads:
            headers = average(remotes, weights, into, layout, scratch=scratch)
            if headers is None:
                given_up += 1
                continue
            complete += 1
            for header in headers:
                assert (header.step, header.metric, header.trained) == (
                    header.version,
                    header.version / 2,
                    3 * header.version,
                )
            values = [value_of(header.version) for header in headers]
            mean = sum(values) / len(values)
            for name in ("a", "b", "z"):
                assert into[name].eq(mean).all(), f"{name}: torn"
            assert into["n"].eq(max(values)).all(), "n: torn"
    finally:
        for remote in remotes:
            remote.close()
        running.stop()
    return complete, given_up


@pytest.mark.parametrize(("n_donors", "items"), [(1, 30_000), (2, 3_000)])
def test_no_read_is_torn(n_donors: int, items: int) -> None:
    read_constantly(1_000, n_donors, items)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("n_donors", "items", "longest_pause_s"),
    [(1, 300, 0.0), (1, 30_000, 0.0), (1, 2_000_000, 0.05), (2, 3_000, 0.0), (4, 30_000, 0.0005)],
)
def test_no_read_is_torn_for_long(n_donors: int, items: int, longest_pause_s: float) -> None:
    read_constantly(10_000 if items < 100_000 else 300, n_donors, items, longest_pause_s)


def stands_in_the_middle(say: Callable[[Any], None], rank: int, size: int, n_whole: int) -> None:
    tensors = model(30_000, 0)
    window = Window(SnapshotLayout.of(tensors))
    for version in range(1, n_whole + 1):
        window.publish(model(30_000, version), step=version, metric=None, trained=version)
    window.begin()
    window.write({"a": torch.full((30_000,), -1.0)})
    say(window.address)
    time.sleep(600)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("n_whole", [1, 2, 3])
def test_the_other_half_of_a_writer_in_mid_copy_is_whole(ending: signal.Signals, n_whole: int) -> None:
    with ranks.start(stands_in_the_middle, 1, n_whole) as running:
        [address] = running.results()
        with RemoteWindow.open(address) as remote:
            os.kill(address["pid"], ending)
            if ending == signal.SIGKILL:
                running.processes[0].join()
            into = model(30_000, 0)
            headers = average([remote], [1.0], into, SnapshotLayout.of(into))
            assert headers is not None
            assert headers[0].version == n_whole
            assert all(tensor.eq(n_whole).all() for tensor in into.values())
            assert remote.is_alive() == (ending == signal.SIGSTOP)
            assert remote.header().version == n_whole
    with pytest.raises(SegmentError, match="cannot open shared memory of process"):
        RemoteWindow.open(address)


def test_a_writer_that_ends_before_it_has_published() -> None:
    with ranks.start(stands_in_the_middle, 1, 0) as running:
        [address] = running.results()
        with RemoteWindow.open(address) as remote:
            running.processes[0].kill()
            running.processes[0].join()
            into = model(30_000, 0)
            assert average([remote], [1.0], into, SnapshotLayout.of(into)) is None
            assert remote.header().version == 0
            assert not remote.is_alive()


def reads_and_waits(say: Callable[[Any], None], rank: int, size: int, address: dict[str, Any]) -> None:
    with RemoteWindow.open(address) as remote, Window(remote.layout) as own:
        own.ask(remote)
        say((own.address, remote.header().version))
        time.sleep(600)


def mappings(inode: str) -> list[str]:
    """Processes that have a segment mapped."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue
        found += [maps.parent.name for line in lines if "/dev/shm/#" in line and line.split()[4] == inode]
    return found


def test_nothing_is_left_of_processes_that_are_killed() -> None:
    writer = ranks.start(stands_in_the_middle, 1, 2)
    readers = None
    try:
        [address] = writer.results()
        pid = address["pid"]
        [inode] = {
            line.split()[4]
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if "/dev/shm/#" in line
        }
        readers = ranks.start(reads_and_waits, 2, address)
        assert [version for _, version in readers.results()] == [2, 2]
        assert len(mappings(inode)) == 3
        # Unnamed, so the kernel frees it with its last mapping.
        assert inode not in {str(entry.stat().st_ino) for entry in os.scandir("/dev/shm")}
        for process in (*writer.processes, *readers.processes):
            process.kill()
            process.join()
        assert mappings(inode) == []
    finally:
        writer.stop()
        if readers is not None:
            readers.stop()


def test_asks_reach_another_process() -> None:
    tensors = model(100, 1)
    window = Window(SnapshotLayout.of(tensors))
    window.publish(tensors, step=1, metric=None, trained=1)
    readers = ranks.start(reads_and_waits, 1, window.address)
    try:
        [(address, version)] = readers.results()
        assert version == 1
        with RemoteWindow.open(address) as reader:
            assert window.is_asked([reader])
            os.kill(address["pid"], signal.SIGSTOP)
            assert window.is_asked([reader])
            window.publish(tensors, step=2, metric=None, trained=2)
            assert not window.is_asked([reader])
    finally:
        readers.stop()
        window.close()
