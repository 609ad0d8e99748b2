"""The seat that a launcher gives."""

import os
import socket

import pytest

from softs_fast.coordination.launcher import default_worker_id, launched_job, launched_seat


@pytest.mark.parametrize(
    ("environment", "seat"),
    [
        ({}, None),
        ({"RANK": "3", "SLURM_PROCID": "5"}, 3),
        ({"SLURM_PROCID": "5"}, 5),
        ({"JOB_COMPLETION_INDEX": "0"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"PMI_RANK": "1"}, 1),
        ({"RANK": "x", "PMI_RANK": "-1"}, None),
    ],
)
def test_launched_seat(environment: dict[str, str], seat: int | None) -> None:
    assert launched_seat(environment) == seat


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, "job"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "job"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "1234"}, "1234"),
        ({"TORCHELASTIC_RUN_ID": "run-7", "SLURM_JOB_ID": "1234"}, "run-7"),
        ({"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "2"}, "1234"),
    ],
)
def test_launched_job(environment: dict[str, str], job: str) -> None:
    assert launched_job(environment) == job


def test_a_worker_has_its_name_again_if_it_has_its_seat() -> None:
    assert default_worker_id(4) == "worker-4"
    assert default_worker_id(None) == f"{socket.gethostname()}-{os.getpid()}"
