"""Whatever the code of a job raises in the server is an error of the run, which its owner and workers are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from raw_client import job_of
from waiting import WATCHDOG_S

from softs_fast.paramserver.wire.messages import Summary

#: What `except Exception` does not catch, and what no future takes.
ERRORS = pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()], ids=repr)


@ERRORS
def test_an_optimizer_that_raises_ends_the_run(serve, enter, error: BaseException) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise error

    server = serve(
        job_of(optimizer=lambda parameters: Broken(parameters, lr=0.1)), options={"linger_s": WATCHDOG_S}
    )
    client = enter(server)
    client.push(client.frame())
    message = client.pull("1.0", 20.0).record(Summary).message
    assert message.startswith("the step after version 1.0 failed: SoftsError: the job has raised")
    assert type(error).__name__ in message
    assert server.status().is_failure


@ERRORS
def test_an_evaluation_that_raises_is_told(serve, enter, error: BaseException) -> None:
    def evaluate(module: torch.nn.Module) -> float:
        raise error

    server = serve(job_of(evaluate=evaluate), options={"evaluate_every": 1})
    client = enter(server)
    client.push(client.frame())
    assert client.pull("1.0", 30.0).status == 200
    driver = server._running().driver
    while not any("evaluating version 1.1 failed" in line.text for line in driver.lines):
        assert not server.wait(0.01)
