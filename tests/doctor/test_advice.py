"""What follows from what was found; each case differs from a machine without a flaw in one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from softs_fast.doctor import Machine, advise

MIB, GIB = 1 << 20, 1 << 30
GOOD = Machine(
    system="Linux 6.1",
    python="3.12.1",
    version="1.0",
    native_error=None,
    packages={"torch": "2.15.0+cu130", "grpcio": "1.70", "cryptography": "45"},
    cuda_build="13000 90-real",
    n_gpus=2,
    shm_bytes=(16 * GIB, 15 * GIB),
    is_shm_writable=True,
    memory_limit=None,
    file_limit=None,
    descriptors=(1024, 1 << 20),
    temporary_folder="/tmp",
    user="ann",
    home="/home/ann",
    processors=8,
    processor_quota=None,
    omp_threads=None,
    pid_namespace="pid:[1]",
    huge_pages="advise",
    loopback_error=None,
    has_route=True,
    congestion_controls=("reno", "bbr"),
    taken={},
)


def test_a_machine_without_a_flaw() -> None:
    findings = advise(GOOD)
    assert {found.level for found in findings} == {"ok"}
    assert len({found.subject for found in findings}) == len(findings)


@pytest.mark.parametrize(
    ("level", "subject", "says", "has"),
    [
        ("problem", "modules", "cannot be loaded: no libc", {"native_error": "no libc"}),
        (
            "note",
            "torch",
            "pip install 'softs-fast[torch]'",
            {"packages": {"grpcio": "1", "cryptography": "1"}},
        ),
        ("note", "torch", "ShmStrategy and ddp_hook work", {"packages": {**GOOD.packages, "torch": "2.9.1"}}),
        ("note", "coordinator", "grpcio and cryptography missing", {"packages": {"torch": "2.15.0"}}),
        ("problem", "shared memory", "/dev/shm is missing", {"shm_bytes": None}),
        ("problem", "shared memory", "chmod 1777", {"is_shm_writable": False}),
        ("problem", "shared memory", "64 MiB of 64 MiB free", {"shm_bytes": (64 * MIB, 64 * MIB)}),
        ("problem", "shared memory", "--shm-size=8g", {"shm_bytes": (16 * GIB, 100 * MIB)}),
        ("note", "shared memory", "--shm-size=8g", {"shm_bytes": (GIB, GIB)}),
        ("ok", "shared memory", "counts for the 4.0 GiB of memory", {"memory_limit": 4 * GIB}),
        ("problem", "shared memory", "ulimit -f unlimited", {"file_limit": 10 * MIB}),
        ("note", "shared memory", "files of 1.0 GiB at most", {"file_limit": GIB}),
        ("ok", "shared memory", "15.0 GiB of 16.0 GiB free", {"file_limit": 20 * GIB}),
        ("note", "huge pages", "echo advise", {"huge_pages": "never"}),
        ("note", "huge pages", "not known", {"huge_pages": None}),
        ("note", "open files", "1024 at most", {"descriptors": (1024, 1024)}),
        ("problem", "open files", "ulimit -Hn", {"descriptors": (64, 64)}),
        ("ok", "open files", "any number", {"descriptors": (64, None)}),
        ("ok", "open files", "no limit", {"descriptors": None}),
        ("problem", "temporary folder", "set TMPDIR", {"temporary_folder": None}),
        ("note", "temporary folder", "too long for the path", {"temporary_folder": "/" + 90 * "x"}),
        ("note", "user", "set USER", {"user": None}),
        ("note", "processors", "time of 1.5", {"processor_quota": 1.5}),
        ("ok", "processors", "time of 1.5", {"processor_quota": 1.5, "omp_threads": "1"}),
        ("ok", "processors", "OMP_NUM_THREADS=4", {"omp_threads": "4"}),
        ("note", "processes", "mount /proc", {"pid_namespace": None}),
        ("note", "home", "set HOME or HF_HOME", {"home": None}),
        ("problem", "loopback", "ip link set lo up", {"loopback_error": "Network is unreachable"}),
        (
            "note",
            "ports",
            "of softs-fast paramserver run at 127.0.0.1:8000: give",
            {"taken": {"paramserver run": "127.0.0.1:8000"}},
        ),
        ("note", "other hosts", "must run on this machine", {"has_route": False}),
        (
            "note",
            "other hosts",
            "tcp_allowed_congestion_control='reno cubic bbr'",
            {"congestion_controls": ("reno", "cubic")},
        ),
        ("ok", "other hosts", "there is a route", {"congestion_controls": ()}),
        ("ok", "GPUs", "none", {"n_gpus": 0, "cuda_build": None}),
        ("problem", "GPUs", "built without CUDA", {"cuda_build": None}),
        ("problem", "GPUs", "build for processors", {"packages": {**GOOD.packages, "torch": "2.15.0+cpu"}}),
    ],
)
def test_what_follows(level: str, subject: str, says: str, has: dict[str, Any]) -> None:
    (found,) = (one for one in advise(replace(GOOD, **has)) if one.subject == subject)
    assert (found.level, says in found.text) == (level, True), found
