"""A flow of which Ray places the workers, and starts one that is killed again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray_environment import driver

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError

DRIVER = Path(__file__).with_name("ray_flow_driver.py")


@pytest.mark.full
# Downloads of some 100 MB the first time.
@pytest.mark.timeout(600)
def test_a_flow_on_ray_goes_on_after_the_death_of_a_worker(short_path: Path) -> None:
    with driver(DRIVER, folder=short_path) as process:
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, (short_path / "errors").read_text()[-5000:]
    assert "six steps, two processes: 2" in out.splitlines()


def test_a_flow_on_ray_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'softs-fast\[ray\]'"):
        df.Flow.on_ray("flows:make_light")
    with pytest.raises(ConfigError, match="no role is on worker 7, for which there are resources"):
        df.Flow.on_ray("flows:make_light", resources={7: {"GPU": 1}})
