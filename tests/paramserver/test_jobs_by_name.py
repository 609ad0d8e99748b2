"""Jobs by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from softs_fast.errors import ConfigError
from softs_fast.paramserver.job import Job, load_job

TEXT = """
from torch import nn
from softs_fast.paramserver.job import Job

job = Job(lambda: nn.Linear(1, 1), lambda module, batch: module(batch).mean(), lambda: [1, 2])

def make():
    return job

class Space:
    inner = job

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_job_of_tests.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "a_job_of_tests", raising=False)
    return "a_job_of_tests"


@pytest.mark.parametrize("name", ["job", "make", "Space.inner"])
def test_a_job_is_found_by_its_name(module: str, name: str) -> None:
    job = load_job(f"{module}:{name}")
    assert isinstance(job, Job)
    assert len(job.data()) == 2
    optimizer = job.optimizer(job.model().parameters())
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job", "need MODULE:NAME"),
        ("no_such_module:job", "cannot be imported"),
        ("a_job_of_tests:other", "has no 'other'"),
        ("a_job_of_tests:number", "is int; need a softs_fast.paramserver.job.Job"),
    ],
)
def test_what_is_no_job_is_refused(module: str, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_job(name)
