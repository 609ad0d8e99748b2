"""A flow of two workers of which one stops, or never returns, where it is told to."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import Any

from flows import numbers
from torch import nn

import softs_fast.dataflow as df


def stop_me() -> None:
    """Have this process stand still. Another thread may get the signal first, so this one does not go on."""
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()


class Actor(df.Role):
    """Its weights go to the generator."""

    place = ""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(1, 1)
        self.stops = False

    def modules(self) -> dict[str, nn.Module]:
        if self.stops:
            threading.Event().wait()
        return super().modules()

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if rows.step == 1 and self.place == "main":
            stop_me()
        if rows.step == 1 and self.place == "hang":
            threading.Event().wait()
        while rows.step == 1 and self.place == "hold":
            ctypes.PyDLL(None).sleep(600)  # with the GIL; a signal ends it early
        return {"y": rows["x"] * 2}

    def train(self, rows: df.Rows) -> None:
        self.stops = self.place == "hook" and rows.step == 1


def make_stopping(place: str = "", deadline_s: float | None = None, **arguments: Any) -> df.Flow:
    """Return a flow; in its second step a process stops in main, or hangs, there or in a hook.

    Args:
        place: "main", "hang", "hold" (with the GIL): worker 1, the generator; "hook": worker 0, the actor, while
            worker 1 waits for weights.
        deadline_s: Deadline of the call in which that happens, seconds.
        arguments: Arguments of the flow.
    """
    role = type("Actor", (Actor,), {"place": place})
    actor = df.place(role, name="actor")
    gen = df.place(role, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=2, deadline_s=None if place == "hook" else deadline_s),
        df.call(
            actor.train,
            "y",
            rows=2,
            after=[df.publish(gen)],
            deadline_s=deadline_s if place == "hook" else None,
        ),
    ]
    return df.Flow(calls, source=numbers(), **arguments)
