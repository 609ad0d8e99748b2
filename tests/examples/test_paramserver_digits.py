"""The example of the parameter server: a worker dies, one comes late, and the model is as good as that of one process."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo import Demo

EXAMPLE = Path(__file__).parents[2] / "examples" / "paramserver_digits.py"
pytestmark = pytest.mark.timeout(180)

pytest.importorskip("uvicorn", reason="needs the extra server")


@pytest.mark.slow
def test_a_death_and_a_late_worker_cost_no_accuracy(launch: Callable[..., Demo], tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    text = launch(sys.executable, EXAMPLE, "--rounds", "80", "--output", picture).succeeds(picture)
    events = re.findall(r"^version (\d+): (.*)$", text, re.MULTILINE)
    assert [what for _, what in events] == ["worker 0 is killed", "worker 3 joins"]
    assert 20 <= int(events[0][0]) <= int(events[1][0]) <= 80
    found = dict(re.findall(r"^(\w[\w ]+?) +([\d.]+)%$", text, re.MULTILINE))
    assert float(found["parameter server"]) > 85
    assert abs(float(found["parameter server"]) - float(found["one process"])) < 6
    # The secret is shown in no log.
    assert not re.search(r"softs1\.[0-9a-f]{32}", text)


def test_too_few_rounds_are_refused(refused: Callable[..., tuple[object, str]]) -> None:
    code, text = refused("paramserver_digits", "--rounds", "3")
    assert code == 2
    assert "--rounds is 3; a death and a late worker need 12" in text
