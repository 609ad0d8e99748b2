"""What a job refuses before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from live_job import CONFIG, Student, live_data

import softs_fast as sf
from softs_fast.coordination import ClientCredentials


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"micro_batch_size": 7}, "global_batch_size=96 is no multiple of micro_batch_size=7"),
        ({"micro_batch_size": 0}, "micro_batch_size must be a whole number and at least 1"),
        ({"global_batch_size": 9.5}, "global_batch_size must be a whole number"),
        ({"product": 1}, "product must be a string, got int"),
        ({"config": "x"}, "config must be a BatchConfig, got str"),
        ({"switches": {0: "2"}}, "a key of switches must be a whole number and at least 1"),
        ({"switches": {5: 2}}, "product must be a string, got int"),
        ({"switches": {5: "x" * 257}}, "has 257 bytes of UTF-8"),
    ],
)
def test_data(changed: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {
        "product": "1",
        "config": CONFIG,
        "global_batch_size": 96,
        "micro_batch_size": 8,
    }
    with pytest.raises(sf.ConfigError, match=text):
        sf.LiveData(**arguments | changed)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("WORLD_SIZE", "4", "WORLD_SIZE is 4, and the job has no coordinator"),
        ("SLURM_NTASKS", "4", "SLURM_NTASKS is 4"),
        ("OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_SIZE is 2"),
        ("SLURM_PROCID", "1", "a launcher has started this process as number 1"),
    ],
)
def test_several_processes_without_a_coordinator(
    name: str, value: str, text: str, frontend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    student = Student(0)
    with pytest.raises(sf.ConfigError, match=text):
        sf.Job("digits", live_data(frontend), sf.TrainingState(student.model, student.optimizer))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"name": ""}, "name must be a text of 1 to 4096 bytes, got ''"),
        ({"seed": 1 << 64}, r"seed must be below 2\*\*64, got one of 65 bits"),
        ({"name": 7}, "name must be a text of 1 to 4096 bytes, got 7"),
        ({"credentials": ClientCredentials()}, "credentials are for a coordinator, and the job has none"),
        ({"checkpoints": "ckpt"}, r"checkpoints must be sf\.Checkpoints\(folder, every=\.\.\.\), got str"),
    ],
)
def test_a_job(changed: dict[str, Any], text: str, frontend: str) -> None:
    student = Student(0)
    state = sf.TrainingState(student.model, student.optimizer)
    given: dict[str, Any] = {"name": "digits", "data": live_data(frontend), "state": state}
    with pytest.raises(sf.ConfigError, match=text):
        sf.Job(**given | changed)


def test_a_job_that_has_not_begun(frontend: str) -> None:
    student = Student(0)
    job = sf.Job("digits", live_data(frontend), sf.TrainingState(student.model, student.optimizer))
    with pytest.raises(sf.ConfigError, match="the job has not begun"):
        next(job.steps(1))


def test_a_loader_in_place_of_data() -> None:
    student = Student(0)
    loader: Any = sf.SoftDataLoader("1", "ipc:///none", CONFIG)
    with pytest.raises(sf.ConfigError, match="a job needs LiveData, got SoftDataLoader"):
        sf.Job("digits", loader, sf.TrainingState(student.model, student.optimizer))


def test_two_jobs_of_one_state(frontend: str) -> None:
    student = Student(0)
    state = sf.TrainingState(student.model, student.optimizer)
    with (
        sf.Job("digits", live_data(frontend), state),
        pytest.raises(sf.ConfigError, match="the state has an object"),
        sf.Job("others", live_data(frontend), state),
    ):
        pass
    # Its job has ended.
    with sf.Job("others", live_data(frontend), state) as job:
        assert (job.rank, job.size, job.committed) == (0, 1, 0)
