"""A fleet has more workers while a student waits, and fewer while they idle; those that end lose nothing."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import factories
import pytest
from snapshots import client, counters, maker, segment, snapshot, supplier
from waiting import eventually

from softs_fast import BrokerTimeout, ConfigError, Fleet, FleetError
from softs_fast.fleet import (
    FleetView,
    PrivateBroker,
    Workers,
    autoscaler,
    fleets,
    scaling,
    supervisor,
    threads,
)
from softs_fast.fleet import fleet as fleet_module
from softs_fast.fleet.autoscaler import load_between
from softs_fast.monitoring import Snapshot

pytestmark = pytest.mark.timeout(100)


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times as many looks as users have, and as many changes as the load of this machine may make of them."""
    monkeypatch.setattr(autoscaler, "LOOK_S", 0.1)
    monkeypatch.setattr(scaling, "_MAX_REVERSALS", 1000)


class Student:
    """A thread that takes numbered samples while it is wanted, and notes their numbers."""

    def __init__(self, fleet: Fleet) -> None:
        self.wanted = threading.Event()
        self.wanted.set()
        self.sequences: list[int] = []
        self._is_over = False
        self._loader = fleet.loader("p", factories.CONFIG, num_slots=16, batch_size=4, ordered=True)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._loader:
            self.sequences += batch["gpu"].tolist()
            self.wanted.wait()
            if self._is_over:
                break

    def end(self) -> None:
        self._is_over = True
        self.wanted.set()
        self._thread.join()
        self._loader.soft_dataset.close()


def test_why_a_load_is_not_known_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    looks = []

    def look() -> None:
        looks.append(None)
        raise BrokerTimeout("nothing there")

    scaler = autoscaler.Autoscaler(
        SimpleNamespace(look=look, close=lambda: None), SimpleNamespace(failed_to_start=lambda: None), (1, 2)
    )
    eventually(lambda: len(looks) > 3)
    scaler.end()
    scaler.join()
    first, count = caplog.messages
    assert first == "the load of the fleet is not known: nothing there"
    assert re.fullmatch(re.escape(first) + r" \(\d+ more in the last [\d.]+ s\)", count)


@contextlib.contextmanager
def student_of(fleet: Fleet) -> Iterator[Student]:
    student = Student(fleet)
    try:
        yield student
    finally:
        student.end()


def serving(fleet: Fleet, n: int) -> bool:
    return fleet.n_workers == n and fleet.states() == {f"worker {number}": "serving" for number in range(n)}


def view_of(fleet: Fleet) -> FleetView:
    """What others see of a fleet."""
    return next(view for view in fleets() if view.frontend == fleet.endpoints.frontend)


def test_workers_follow_a_student_that_waits_stops_and_waits_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "softs_fast.fleet.autoscaler")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    with Fleet(factories.make_slow, n_workers=(1, 3)) as fleet, student_of(fleet) as student:
        assert view_of(fleet).scaled == ""
        assert view_of(fleet).workers[0].threads == "2", (
            "a share for each of the most, and one for the student"
        )
        with pytest.raises(
            ConfigError, match="the load sets the number of workers of this fleet, from 1 to 3"
        ):
            fleet.scale(2)
        eventually(lambda: serving(fleet, 3), "the student waits")
        student.wanted.clear()
        eventually(lambda: serving(fleet, 1), "the workers idle")
        # Nothing is wanted, so this decision stays the last one.
        assert re.search(r" to 1 workers, workers are busy \d+% of the time", view_of(fleet).scaled)
        student.wanted.set()
        eventually(lambda: serving(fleet, 3), "the student waits again")
    assert caplog.messages[0].startswith("1 to 2 workers, students wait ")
    assert caplog.messages[0].endswith("; within 1 to 3")
    assert student.sequences == [*range(len(student.sequences))], "no sample is lost or made twice"


def test_a_worker_that_cannot_start_is_removed_and_the_others_go_on(tmp_path: Path) -> None:
    make_worker = functools.partial(factories.make_slow_once, str(tmp_path / "made"))
    with Fleet(make_worker, n_workers=(1, 3)) as fleet, student_of(fleet) as student:
        eventually(
            lambda: view_of(fleet).scaled == "2 to 1 workers, worker 1 could not start", "it has failed"
        )
        eventually(lambda: serving(fleet, 1), "it is removed")
        seen = len(student.sequences)
        eventually(lambda: len(student.sequences) > seen + 40, "looks at a student that waits")
        assert serving(fleet, 1)


def test_a_load_is_what_students_and_own_workers_count() -> None:
    second = 10**9

    def at(at_s: float, scale: int) -> Snapshot:
        own, other = (maker(i, 70 + i, samples=40 * scale, busy_ns=scale * second // 2) for i in range(2))
        seen = segment(counters(samples=80 * scale, waited_ns=scale * second), own, other)
        leases = (supplier(1), supplier(0, peer_id=2))
        return snapshot(at_s, client(seen), suppliers=leases, completed=30 * scale)

    load = load_between((at(0.0, 0), {70, 75}), (at(2.0, 1), {70, 75}))
    assert load.n_serving == 2
    assert load.n_busy == pytest.approx(0.25 + 1.0), "by lane, and half of them by the broker"
    assert load.students == [(40.0, 0.5), (15.0, 0.5)], "the orders at the broker are queued"
    load = load_between((at(0.0, 0), {70, 75}), (at(2.0, 1), {70, 76}))
    assert (load.n_serving, load.n_busy) == (1, pytest.approx(0.25 + 0.5)), "the other one was replaced"


def test_a_block_ends_well_though_a_worker_that_was_added_could_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_worker = functools.partial(factories.make_slow_once, str(tmp_path / "made"))
    # The fleet does not see that it has failed before the block ends.
    monkeypatch.setattr(Workers, "failed_to_start", lambda workers: None)
    with Fleet(make_worker, n_workers=(1, 2)) as fleet, student_of(fleet):
        eventually(lambda: fleet.states() == {"worker 0": "serving", "worker 1": "given up"}, "it has failed")


def test_a_fleet_that_is_dropped_ends() -> None:
    fleet: Fleet | None = Fleet(factories.make_supplier, n_workers=(1, 2))
    assert fleet is not None
    fleet.start()
    place = Path(fleet.endpoints.frontend.removeprefix("ipc://"))
    assert place.parent.exists()
    fleet = None
    gc.collect()
    eventually(lambda: not place.parent.exists(), "its folder is removed")


@pytest.mark.parametrize("interrupted", ["workers", "broker", "autoscaler"])
def test_ctrl_c_while_a_fleet_ends_leaves_nothing(tmp_path: Path, interrupted: str) -> None:
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if name == interrupted:
            raise KeyboardInterrupt

    parts: Any = fleet_module._Parts.__new__(fleet_module._Parts)
    parts.broker = PrivateBroker.__new__(PrivateBroker)
    parts.broker.folder = tmp_path / "folder"
    parts.broker.folder.mkdir()
    parts.broker._broker = SimpleNamespace(stop=lambda: step("broker"))
    parts.workers = SimpleNamespace(close=lambda: step("workers"))
    parts.autoscaler = SimpleNamespace(end=lambda: step("end"), join=lambda: step("autoscaler"))
    with pytest.raises(KeyboardInterrupt):
        parts.close()
    assert steps == ["end", "workers", "broker", "autoscaler"]
    assert not parts.broker.folder.exists()


@contextlib.contextmanager
def in_calls(fleet: Fleet, folder: Path) -> Iterator[tuple[Future[Any], Future[None]]]:
    """Both workers are in calls for the next batch, which end when there is a file "go", and one is to be removed."""
    loader = fleet.loader("p", factories.CONFIG, num_slots=2, batch_size=2, ordered=True)
    batches = iter(loader)
    with ThreadPoolExecutor() as threads:
        try:
            batch = threads.submit(next, batches)
            eventually(lambda: len(list(folder.iterdir())) == 2, "both make a sample")
            removal = threads.submit(fleet.scale, 1)
            eventually(lambda: fleet.stats().connected_suppliers == 1, "one takes no more orders")
            assert fleet.states() == {"worker 0": "serving", "worker 1": "ending"}
            yield batch, removal
        finally:
            (folder / "go").touch()
            loader.soft_dataset.close()


def test_a_worker_that_is_removed_ends_the_call_that_runs(tmp_path: Path) -> None:
    with Fleet(functools.partial(factories.make_gated, str(tmp_path)), n_workers=2) as fleet:
        with in_calls(fleet, tmp_path) as (batch, removal):
            makers = sorted(file.name for file in tmp_path.iterdir())
            (tmp_path / "go").touch()
            removal.result()
            assert fleet.states() == {"worker 0": "serving"}
            got = batch.result()
        assert got["gpu"].tolist() == [0, 1]
        assert (
            sorted(f"{n} {pid}" for n, pid in zip(got["gpu"].tolist(), got["pid"].tolist(), strict=True))
            == makers
        )
        assert sorted(file.name for file in tmp_path.glob("[01] *")) == makers, "neither was made twice"


def test_a_fleet_that_ends_does_not_wait_for_the_call_of_a_worker_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "DRAIN_S", 3600.0)
    fleet = Fleet(functools.partial(factories.make_gated, str(tmp_path)), n_workers=2)
    with fleet, in_calls(fleet, tmp_path) as (batch, removal):
        fleet.close()
        with pytest.raises(FleetError, match="the fleet has ended"):
            removal.result()
        assert not batch.done()
