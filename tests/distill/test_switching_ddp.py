"""Two ranks of a DDP training switch at the same step, and each has a stream of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from school import School

import softs_fast
from softs_fast.distill import switch_model


def test_all_ranks_switch_at_the_same_step(school: School, short_path: Path) -> None:
    school.broker()
    for _ in range(2):
        school.worker()
    script = Path(__file__).with_name("rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(short_path), str(rank), "2"], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said: list[Any] = []
    try:
        for rank in ranks:
            text, _ = rank.communicate(timeout=50)
            assert rank.returncode == 0
            said.append(json.loads(text))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for rank, told in enumerate(said):
        expected = [[[model] * 2, [rank] * 2, [2 * i, 2 * i + 1]] for model in range(1, 21) for i in range(2)]
        assert told["seen"] == expected
    assert said[0]["problem"].startswith("ConfigError: model_id must have")
    assert said[1]["problem"].startswith("PeerLost: the switch to model ")
    assert "failed in rank 0; the errors of these ranks name the cause" in said[1]["problem"]


def test_without_ddp_it_is_set_model(school: School) -> None:
    school.broker()
    assert switch_model(school.student(), "1") == 1
    with pytest.raises(softs_fast.ConfigError, match="only rank 0"):
        switch_model(school.student(1), "2")
