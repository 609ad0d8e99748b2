"""Samples of suppliers at one broker, for clients of another one, by two links with a token."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import certificates
import pytest
import stamp
from fork_check import check_fork
from joined import CONFIG, endpoints_of, joined, numbered_supplier, token
from market import take
from waiting import WATCHDOG_S, eventually, free_ports

import softs_fast as sf
from softs_fast.trust import TlsFiles

BATCH = 8


def numbers(batch: dict[str, Any], makers: set[int]) -> list[int]:
    """The numbers of the samples of a batch, each of which is whole; notes what has made them."""
    found: list[int] = batch["n"].tolist()
    for number, row in zip(found, batch["x"].tolist(), strict=True):
        assert row == [row[0]] * 100
        assert row[0] // 10 == number
        makers.add(row[0] % 10)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"ordered": True},
        {"ordered": True, "zero_copy": True},
        {"ordered": True, "num_workers": 2},
        {"ordered": True, "rank": 1, "world_size": 2},
        {},
    ],
    ids=["ordered", "zero_copy", "threads", "rank", "unordered"],
)
def test_a_loader_gets_samples_of_another_host(short_path: Path, options: dict[str, Any]) -> None:
    with (
        joined(short_path) as hosts,
        numbered_supplier(hosts.teachers.backend),
        sf.SoftDataLoader(
            "p", hosts.student.frontend, CONFIG, num_slots=64, batch_size=BATCH, **options
        ) as loader,
    ):
        makers: set[int] = set()
        found = [number for batch in islice(loader, 40) for number in numbers(batch, makers)]
        rank, size = options.get("rank", 0), options.get("world_size", 1)
        if "ordered" in options:
            assert found == list(range(rank, 40 * BATCH * size, size))
        assert len(set(found)) == 40 * BATCH
        assert [hosts.student_link.n_hosts, hosts.teachers_link.n_hosts] == [1, 1]


def test_certificates_of_a_site_say_which_host_serves_and_which_one_orders(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    site = certificates.Authority(short_path)
    both = []
    for role in ("student", "teacher"):
        cert, key = site.issue(role, "softs-fast", f"softs://digits/{role}/1", address="softs-fast")
        both.append(TlsFiles(cert=Path(cert), key=Path(key), ca=site.file))
    caplog.set_level(logging.INFO, "softs_fast")
    with joined(short_path, (both[0], both[1])) as hosts, contextlib.ExitStack() as stack:
        for ends in (hosts.teachers, hosts.student):
            stack.enter_context(numbered_supplier(ends.backend, product=ends.frontend))
        student, teacher = (
            stack.enter_context(sf.SoftDataLoader(product, there, CONFIG, num_slots=8, batch_size=BATCH))
            for product, there in (
                (hosts.teachers.frontend, hosts.student.frontend),
                (hosts.student.frontend, hosts.teachers.frontend),
            )
        )
        assert len(next(iter(student))["n"]) == BATCH
        iter(teacher)
        eventually(
            lambda: caplog.text.count("makes no samples for others") == 2, "a line of each of both hosts"
        )
        assert caplog.text.count("orders no samples, and sets no models") == 2


def test_products_of_other_sizes_both_ways(short_path: Path) -> None:
    """Each host has a supplier and a client; the larger sample has several pieces."""
    sizes = {"small": 64, "large": 600_000}
    with joined(short_path) as hosts:
        there = {"small": hosts.teachers, "large": hosts.student}
        with (
            sf.Supplier(
                stamp.Maker(sizes["small"]).make,
                ["small"],
                there["small"].backend,
                sf.ShmMedium,
                sizes["small"],
            ),
            sf.Supplier(
                stamp.Maker(sizes["large"]).make,
                ["large"],
                there["large"].backend,
                sf.ShmMedium,
                sizes["large"],
            ),
            sf.Client(hosts.student.frontend, sf.ShmMedium, sizes["small"], 8) as small,
            sf.Client(hosts.teachers.frontend, sf.ShmMedium, sizes["large"], 8) as large,
        ):
            take(small, stamp.Checker(), 200, "small")
            take(large, stamp.Checker(), 30, "large")


def test_links_wait_for_peers_and_brokers_and_join_the_next_ones(short_path: Path) -> None:
    student, teachers = endpoints_of(short_path, "s"), endpoints_of(short_path, "t")
    address, credentials = f"127.0.0.1:{free_ports()[0]}", token(short_path)
    checker, maker = stamp.Checker(), stamp.Maker(128)
    with (
        sf.HostLink(student, connect=[address], credentials=credentials),
        sf.HostLink(teachers, listen=address, credentials=credentials),
    ):
        first, there = sf.Broker(student), sf.Broker(teachers)
        with first, there:
            supplier = sf.Supplier(maker.make, ["p1"], teachers.backend, sf.ShmMedium, 128)
            client = sf.Client(student.frontend, sf.ShmMedium, 128, 4)
            with supplier, client:
                take(client, checker, 50)
                for broker in (first, there):
                    broker.stop()
                    broker.start()
                    take(client, checker, 50)
                # One that has come after the restarts is introduced by the next brokers.
                with (
                    sf.Supplier(maker.make, ["p2"], teachers.backend, sf.ShmMedium, 128),
                    sf.Client(student.frontend, sf.ShmMedium, 128, 4) as other,
                ):
                    take(other, checker, 50, "p2")


def test_a_host_that_drains_sends_what_is_being_made_and_takes_no_more(short_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()
    there: list[int] = []
    here: list[int] = []

    def make_there(product_id: str, sequence: int) -> bytes:
        begun.set()
        assert may_end.wait(WATCHDOG_S)
        there.append(sequence)
        return stamp.numbered(sequence, 64)

    def make_here(product_id: str, sequence: int) -> bytes:
        here.append(sequence)
        return stamp.numbered(sequence, 64)

    with (
        joined(short_path) as hosts,
        sf.Supplier(make_there, ["p"], hosts.teachers.backend, sf.ShmMedium, 64),
        sf.Client(hosts.student.frontend, sf.ShmMedium, 64, 4, ordered=True) as client,
    ):
        assert client.request_sample("p", timeout_ms=0) is None
        eventually(lambda: client.request_sample("p", timeout_ms=10) is None and begun.is_set())
        drains = threading.Thread(target=hosts.teachers_link.drain, args=(WATCHDOG_S,))
        drains.start()
        with sf.Supplier(make_here, ["p"], hosts.student.backend, sf.ShmMedium, 64):
            eventually(lambda: client.request_sample("p", timeout_ms=10) is None and len(here) == 3)
            may_end.set()
            drains.join()
            hosts.teachers_link.close()
            for number in range(4):
                slot = client.request_sample("p", timeout_ms=round(WATCHDOG_S * 1000))
                assert slot is not None
                assert stamp.number_of(client.medium.read(slot)) == number
        assert there == [0]
        assert sorted(here) == [1, 2, 3], "0 was not made again"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_has_no_link_and_does_not_end_that_of_its_parent(short_path: Path) -> None:
    with joined(short_path) as hosts:
        link = hosts.student_link
        eventually(lambda: link.n_hosts == 1)
        check_fork(lambda: link.n_hosts, link.drain, link.wait, match="host link", then=link.close)
        assert link.n_hosts == 1


def test_a_wait_ends_with_the_thread_of_the_link(short_path: Path) -> None:
    def polls() -> set[int]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the folder itself
                if "eventpoll" in os.readlink(f"/proc/self/fd/{number}"):
                    found.add(int(number))
        return found

    before = polls()
    with sf.HostLink(endpoints_of(short_path, "s"), listen="127.0.0.1:0") as link:
        (own,) = polls() - before
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), own)
        # It wakes for its broker.
        link.wait()
        link.drain(WATCHDOG_S)
