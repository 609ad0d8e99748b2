"""Examples, started as users start them."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo import Demo

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture
def launch() -> Iterator[Callable[..., Demo]]:
    """Starts examples; whatever a test leaves of them is killed."""
    demos: list[Demo] = []

    def launch(*command: str | Path) -> Demo:
        demos.append(Demo(*command))
        return demos[-1]

    yield launch
    for demo in demos:
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)
        demo.process.wait()
        demo.output.close()


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str]]:
    """Runs an example in this process, with arguments that it refuses; how it ends, and what it says.

    Its own process would import torch for seconds before it says so.
    """

    def refused(example: str, *arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [example, *arguments])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(example).main()
        return ended.value.code, capsys.readouterr().err

    return refused
