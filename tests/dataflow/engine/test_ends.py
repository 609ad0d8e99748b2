"""A worker that ends twice alike in one step is not started a third time; what is said names its ticket and phase."""

from __future__ import annotations

import pytest
from flow_threads import in_threads
from restart_flow import make_restarting

from softs_fast.dataflow.engine.ends import Ends
from softs_fast.dataflow.engine.running import SentStep
from softs_fast.dataflow.link.messages import Result
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.errors import FlowError

EXIT = "process 17: its process ended: exit status 3\nthe last line that it has printed"
CRASH = "process 18: its process ended: signal SIGSEGV"
KILL = "process 19: its process ended: signal SIGKILL"


def sent(ids: tuple[int, ...] = (0, 1), name: str = "gen.generate") -> list[SentStep]:
    """Return the steps that are open at a worker."""
    step = Step(Kind.MAIN, frozenset({1}), name)
    return [SentStep(step, ids), SentStep(step, (8, 9))]


@pytest.mark.parametrize(
    ("ends", "is_repeated"),
    [
        ([EXIT, EXIT], True),
        ([CRASH, CRASH], True),
        ([EXIT, CRASH], False),
        ([KILL, KILL], False),  # it comes from elsewhere
        ([EXIT, KILL, EXIT], False),
        (["its connection ended"] * 2, False),
    ],
)
def test_ends_that_are_alike(ends: list[str], is_repeated: bool) -> None:
    found = Ends()
    assert [found.note(1, one, sent()) for one in ends][-1] is is_repeated
    assert found.is_repeated is is_repeated


def test_ends_elsewhere_are_others() -> None:
    ends = Ends()
    for worker, inside in (
        (1, sent()),
        (1, sent((2, 3))),
        (1, sent((2, 3), "gen.score")),
        (2, sent()),
        (2, []),
    ):
        assert not ends.note(worker, EXIT, inside)
    assert not ends.note(2, EXIT, [])
    assert not ends.is_repeated


def test_a_function_that_ends_its_process_is_called_twice() -> None:
    flow, workers = in_threads(make_restarting)
    workers.left, workers.reasons[1] = 5, "its process ended: exit status 3"

    def end(worker: int, message: object) -> None:
        if worker == 1 and isinstance(message, Result) and message.ids:
            workers.hub.kill(1)

    with flow:
        workers.hub.on_message = end
        with pytest.raises(
            FlowError,
            match=r"^worker 1 is lost: process 1001: its process ended: exit status 3; ticket \d+, main of gen.generate "
            r"\(call \d+\), was open there, and behind it call \d+ of gen.generate; the process before it has ended there "
            "in the same way, so it is not started again$",
        ):
            list(flow.steps(1))
        assert flow.ask("stats")["restarts"] == 1
    assert workers.left == 3
