"""The threads of each process of a fleet: its share of the cores, unless user or launcher has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from softs_fast.fleet import threads
from softs_fast.fleet.threads import OwnThreads, cores, follow, share


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of eight cores, on which torch computes as it does by default."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(threads, "cores", lambda: 8)
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("n_processes", "environment", "variables"),
    [
        (3, {}, {"OMP_NUM_THREADS": "2"}),
        (1, {}, {"OMP_NUM_THREADS": "8"}),
        (9, {}, {"OMP_NUM_THREADS": "1"}),
        (3, {"OMP_NUM_THREADS": "5"}, {}),
    ],
)
@pytest.mark.usefixtures("eight")
def test_a_process_gets_its_share_unless_it_is_chosen(
    n_processes: int, environment: dict[str, str], variables: dict[str, str]
) -> None:
    assert share(n_processes, environment) == variables


@pytest.mark.parametrize(
    ("quota", "n_cores"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8), ("?", 8)],
)
@pytest.mark.usefixtures("eight")
def test_the_quota_of_a_container_counts(tmp_path: Path, quota: str, n_cores: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cores(tmp_path) == n_cores
    assert cores(tmp_path / "without") == 8


@pytest.mark.parametrize(("chosen", "n_threads"), [("3", 3), ("2,4", 2), ("", 8), ("0", 8), ("many", 8)])
@pytest.mark.usefixtures("eight")
def test_torch_follows_what_is_set_after_its_import(
    monkeypatch: pytest.MonkeyPatch, chosen: str, n_threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    follow()
    assert torch.get_num_threads() == n_threads


@pytest.mark.usefixtures("eight")
def test_the_student_computes_with_its_share_while_workers_run(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnThreads()
    for n_processes, n_threads in ((3, 2), (2, 4), (2, 4), (9, 1)):
        own.take_share(n_processes)
        assert torch.get_num_threads() == n_threads
    assert caplog.messages[0].startswith("this process computes with 2 of 8 threads while its workers run")
    assert len(caplog.messages) == 3
    own.give_back()
    assert torch.get_num_threads() == 8


@pytest.mark.usefixtures("eight")
def test_a_number_that_the_program_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(7)
    own = OwnThreads()
    own.take_share(2)
    assert torch.get_num_threads() == 7, "before the fleet"
    torch.set_num_threads(8)
    own.take_share(2)
    torch.set_num_threads(6)
    own.take_share(3)
    own.give_back()
    assert torch.get_num_threads() == 6, "in its block"
    torch.set_num_threads(8)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    OwnThreads().take_share(3)
    assert torch.get_num_threads() == 8, "by the environment"
