"""A fleet serves, says why it does not, replaces workers that die, and leaves nothing behind."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import factories
import pytest
from waiting import eventually

import softs_fast as sf
from softs_fast import ConfigError, Fleet, FleetError
from softs_fast.fleet import supervisor
from softs_fast.fleet.status import fleets

pytestmark = pytest.mark.timeout(50)


def loader_of(fleet: Fleet, **arguments: Any) -> sf.SoftDataLoader:
    return fleet.loader("p", factories.CONFIG, num_slots=4, batch_size=2, **arguments)


def pids_of(loader: sf.SoftDataLoader, n_batches: int = 4) -> set[int]:
    """The processes that have made the next samples."""
    return {pid for _, batch in zip(range(n_batches), loader, strict=False) for pid in batch["pid"].tolist()}


def threads_of(fleet: Fleet) -> list[str]:
    """What others see of the workers that serve."""
    (seen,) = [view for view in fleets() if view.frontend == fleet.endpoints.frontend]
    return [worker.threads for worker in seen.workers if worker.state == "serving"]


def test_it_serves_shows_what_workers_print_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # More processes than cores: a thread each, without a choice.
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    with Fleet(factories.make_supplier, n_workers=2) as fleet:
        assert fleet.states() == {"worker 0": "serving", "worker 1": "serving"}
        eventually(lambda: threads_of(fleet) == ["1", "1"], "it tells of its workers")
        assert fleet.stats().connected_suppliers == 2
        loader = loader_of(fleet)
        pids = pids_of(loader, 20)
        loader.soft_dataset.close()
        folder = fleet.endpoints.frontend.removeprefix("ipc://").rpartition("/")[0]
        assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.getpid() not in pids
    assert not os.path.exists(folder)
    printed = capfd.readouterr().err
    for line in ("[worker 0] one line\n", "[worker 1] one line\n", "[worker 1] and \\udcff another\n"):
        assert line in printed


def test_students_and_workers_find_each_other_and_a_leader_ends_the_workers() -> None:
    with Fleet(factories.make_worker) as fleet, fleet.student(4, factories.CONFIG) as student:
        student.hello()
        student.set_model("m")
        sample = student.request_sample(timeout_ms=20_000)
        assert sample.tensors()["pid"].item() != os.getpid()
        student.release_slot(sample.slot_id)
        student.stop_workers()
        eventually(lambda: fleet.states() == {"worker 0": "ended"}, "the worker has ended, and stays so")


def test_each_worker_sees_one_device() -> None:
    with Fleet(factories.make_supplier, n_workers=3, gpus=[5, 7]) as fleet:
        loader = loader_of(fleet)
        seen = {gpu for _, batch in zip(range(200), loader, strict=False) for gpu in batch["gpu"].tolist()}
        loader.soft_dataset.close()
    assert seen
    assert seen <= {5, 7}


def test_the_number_of_workers_changes() -> None:
    with Fleet(factories.make_supplier) as fleet:
        for count in (3, 1, 2):
            fleet.scale(count)
            assert fleet.states() == {f"worker {number}": "serving" for number in range(count)}
            assert fleet.n_workers == count
            eventually(lambda n=count: fleet.stats().connected_suppliers == n, "the broker knows them")
        with pytest.raises(ConfigError, match="n_workers must be a number from 1 to 1024, got 0"):
            fleet.scale(0)


def test_a_worker_that_is_killed_is_replaced() -> None:
    with Fleet(factories.make_supplier) as fleet:
        loader = loader_of(fleet)
        (first,) = pids_of(loader)
        # What SLURM, MPI and terminals send to all processes of a job is for the owner of the fleet.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(first, number)
        assert pids_of(loader, 20) == {first}
        os.kill(first, signal.SIGKILL)
        eventually(lambda: pids_of(loader) - {first}, "samples of another process")
        loader.soft_dataset.close()
        # It answers orders a moment before it has told the fleet.
        eventually(lambda: fleet.states() == {"worker 0": "serving"}, "the fleet knows it")


def test_a_worker_that_fails_again_and_again_is_given_up_and_a_loader_without_a_timeout_says_why() -> None:
    cause = r"(?s)fleet: 1 given up; worker 0 failed \d+\.\d s ago: .*in generate.*SystemExit: 3"
    fleet = Fleet(factories.make_quitter, max_restarts=1)
    fleet.start()
    loader = loader_of(fleet)
    with pytest.raises(sf.NoSupplier, match=cause):
        next(iter(loader))
    assert fleet.states() == {"worker 0": "given up"}
    loader.soft_dataset.close()
    with pytest.raises(FleetError, match=r"(?s)worker 0 failed: .*SystemExit: 3"):
        fleet.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("make_worker", "reason"),
    [
        (factories.raise_an_error, r"(?s)worker \d failed: Traceback.*RuntimeError: no weights in /models"),
        (factories.make_a_list, r"make_a_list\(\) returned list; it must return a Worker or a Supplier"),
        (factories.end_at_once, r"(?s)its process ended: exit status 3.*this is the last line"),
    ],
)
def test_a_worker_that_does_not_start_says_why(make_worker: Callable[[], Any], reason: str) -> None:
    with pytest.raises(FleetError, match=reason), Fleet(make_worker, n_workers=2):
        pytest.fail("it began")


def test_a_start_that_takes_too_long_ends() -> None:
    with pytest.raises(FleetError, match=r"0 of 2 workers serve after 0.1 s"):
        Fleet(factories.make_slow_starter, n_workers=2, start_timeout_s=0.1).start()


def test_workers_that_cannot_be_added_leave_the_others_at_work(tmp_path: Path) -> None:
    with Fleet(functools.partial(factories.make_once, str(tmp_path / "made"))) as fleet:
        with pytest.raises(FleetError, match=r"(?s)worker 1 failed: .*FileExistsError"):
            fleet.scale(2)
        eventually(lambda: fleet.states() == {"worker 0": "serving"}, "the other one is gone")
        assert fleet.n_workers == 1
        loader = loader_of(fleet)
        assert pids_of(loader)
        loader.soft_dataset.close()


def test_workers_may_have_processes_of_their_own() -> None:
    with Fleet(factories.make_parent) as fleet:
        loader = loader_of(fleet)
        assert pids_of(loader)
        loader.soft_dataset.close()


def test_what_workers_print_appears_line_by_line(capfd: pytest.CaptureFixture[str]) -> None:
    with Fleet(factories.make_printer):
        pass
    lines = capfd.readouterr().err.splitlines()
    assert "[worker 0] 100 %" in lines, "the last state of a progress bar"
    assert "".join(line.removeprefix("[worker 0] ") for line in lines).count("x") == 200_000
    assert max(map(len, lines)) < 150_000, "an endless line is cut"


def test_the_main_thread_of_its_process_frees_a_worker(capfd: pytest.CaptureFixture[str]) -> None:
    """Where another one does it while the interpreter ends, torch aborts."""
    with Fleet(factories.make_freed, n_workers=3):
        pass
    assert re.findall(r"freed by (.*)", capfd.readouterr().err) == ["MainThread"] * 3


def test_workers_go_on_when_nothing_reads_what_they_print(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    with Fleet(factories.make_supplier) as fleet:
        loader = loader_of(fleet)
        assert pids_of(loader)
        loader.soft_dataset.close()


def test_a_worker_that_holds_the_gil_for_ever_ends_with_its_fleet(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_END_S", 0.3)
    with Fleet(factories.make_stuck) as fleet:
        loader = loader_of(fleet, request_timeout=0.5)

        def is_stuck() -> bool:
            with pytest.raises(sf.SampleTimeout):
                next(iter(loader))
            return "a call begins" in capfd.readouterr().err

        eventually(is_stuck, "a call has begun")
        loader.soft_dataset.close()


def test_two_fleets_do_not_meet() -> None:
    with Fleet(factories.make_supplier) as one, Fleet(factories.make_supplier) as other:
        loaders = [loader_of(fleet) for fleet in (one, other)]
        first, second = (pids_of(loader) for loader in loaders)
        for loader in loaders:
            loader.soft_dataset.close()
        assert first.isdisjoint(second)
        assert one.stats().connected_suppliers == other.stats().connected_suppliers == 1


def test_a_fleet_may_be_started_and_used_in_any_thread() -> None:
    fleet = Fleet(factories.make_supplier)
    starter = threading.Thread(target=fleet.start)
    starter.start()
    starter.join()
    loader = loader_of(fleet)
    assert pids_of(loader)
    loader.soft_dataset.close()
    fleet.close()
    fleet.close()
    with pytest.raises(FleetError, match="it cannot start again"):
        fleet.start()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_leaves_the_fleet_of_its_parent_alone() -> None:
    with Fleet(factories.make_supplier) as fleet:
        child = multiprocessing.get_context("fork").Process(target=fleet.close)
        child.start()
        child.join()
        assert child.exitcode == 0
        child.close()
        loader = loader_of(fleet)
        assert pids_of(loader)
        loader.soft_dataset.close()


RANGE = "n_workers must be a number, or the fewest and the most, each from 1 to 1024"
BAD_RANGES = ((0, 4), (1, 2, 3), (2,), (1, 1025), (1.0, 2), (True, 2), ("1", "2"), [1, None])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"make_worker": lambda: None}, "make_worker cannot be imported by another process"),
        ({"make_worker": "module:name"}, "make_worker must be a function, got str"),
        ({"n_workers": 0}, "n_workers must be a number from 1 to 1024, got 0"),
        ({"n_workers": 10_000}, "n_workers must be a number from 1 to 1024, got 10000"),
        ({"n_workers": 1.5}, "n_workers must be a number from 1 to 1024, got 1.5"),
        ({"n_workers": True}, "n_workers must be a number from 1 to 1024, got True"),
        ({"n_workers": (4, 2)}, r"n_workers must have the fewest first, then the most, got \(4, 2\)"),
        *(({"n_workers": pair}, re.escape(f"{RANGE}, got {pair!r}")) for pair in BAD_RANGES),
        ({"gpus": []}, "gpus must be numbers or UUIDs of devices, at least one"),
        ({"gpus": ["a"]}, "gpus must be numbers or UUIDs of devices, at least one"),
        ({"max_restarts": -1}, "max_restarts must be at least 0"),
        ({"start_timeout_s": 0}, "start_timeout_s must be more than 0"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Fleet(**{"make_worker": factories.make_supplier, **arguments})


def test_a_fleet_that_is_not_running_says_so() -> None:
    fleet = Fleet(factories.make_supplier)
    fleet.close()
    for use in (lambda: fleet.endpoints, fleet.stats, fleet.states, lambda: fleet.scale(2)):
        with pytest.raises(FleetError, match="the fleet is not running"):
            use()
