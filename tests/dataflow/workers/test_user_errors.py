"""Whatever a function or a hook raises is an error of that function, at once: no worker is lost, and nothing is retried."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from flow_threads import in_threads
from flows import Light, numbers

import softs_fast.dataflow as df
from softs_fast.errors import FlowError


class Full(BaseException):
    """As torch's CheckpointException on a full disk: no Exception."""


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        sys.exit(5)

    __repr__ = __str__


class Foreign(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("it cannot be pickled")


ERRORS: dict[str, tuple[BaseException, str]] = {
    "exit": (SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt(), "KeyboardInterrupt\n"),
    "base": (Full("no space left"), "Full: no space left"),
    "mute": (Mute(), "Mute: no text: its __str__ raised SystemExit"),
    "surrogate": (ValueError("a\udc80b"), r"ValueError: a\\udc80b"),
    "huge": (
        ValueError("x" * (1 << 20)),
        r"ValueError: xxxx(.|\n)*the middle of 10485\d\d characters is left out",
    ),
    "foreign": (Foreign("no"), "Foreign: no"),
}


def make_flow(place: str, error: str) -> df.Flow:
    """Return a flow of a role that raises in one place."""

    def raise_at(here: str) -> None:
        if here == place:
            raise ERRORS[error][0]

    class Model(Light):
        def model_config(self) -> dict[str, int]:
            raise_at("model_config")
            return {}

        def double(self, rows: df.Rows) -> dict[str, Any]:
            raise_at("function")
            return super().double(rows)

        def train(self, rows: df.Rows) -> None: ...

    def hook(role: Model) -> None:
        raise_at("hook")

    one = df.place(Model, name="one")
    calls = [
        df.call(one.double, "x -> y", rows=2, after=[df.hook(hook)]),
        df.call(one.train, "y", rows=2),
    ]
    return df.Flow(calls, source=numbers())


def in_workers(place: str, error: str) -> df.Flow:
    flow, workers = in_threads(lambda: make_flow(place, error))
    workers.left = 5
    return flow


@pytest.mark.parametrize("make", [make_flow, in_workers])
@pytest.mark.parametrize("place", ["function", "hook"])
@pytest.mark.parametrize("error", ERRORS)
def test_what_a_function_raises_is_its_error(
    make: Callable[[str, str], df.Flow], place: str, error: str
) -> None:
    where = "one.double failed on 2 rows" if place == "function" else "hook .* of one.double failed"
    # In this process the main thread runs the function, so that KeyboardInterrupt is Ctrl-C there.
    is_ctrl_c = make is make_flow and error == "interrupt"
    wanted = KeyboardInterrupt if is_ctrl_c else FlowError
    with make(place, error) as flow:
        with pytest.raises(wanted) as caught:
            next(flow.steps(1))
        assert flow.ask("stats")["restarts"] == 0
    if not is_ctrl_c:
        assert len(str(caught.value)) < 100_000
        caught.match(f"^{where}.*: {ERRORS[error][1]}")


@pytest.mark.parametrize("error", ERRORS)
def test_a_model_config_that_raises_is_an_error_when_it_is_asked(error: str) -> None:
    with (
        in_workers("model_config", error) as flow,
        pytest.raises(
            FlowError, match=f"model_config of role 'one': {ERRORS[error][1].split('(')[0].rstrip()}"
        ),
    ):
        flow.ask("model_config", role=flow.declaration.roles[0])
