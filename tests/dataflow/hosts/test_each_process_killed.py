"""kill -9 of each process of a flow in turn, in one run: all steps are there, and the weights have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import journal_flow
import pytest
import torch
from flow_processes import in_forks
from host_workers import HostWorkers
from journal_flow import ROWS, factor, numbers, same, shrink, weights_of
from masters import PacedRun
from waiting import WATCHDOG_S

import softs_fast.dataflow as df


class Model(journal_flow.Model):
    """The generator is started again by itself, with generators as after `setup`; so it draws by the row alone."""

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.net.eval()
        found = self.net(rows["x"])
        self.net.train()
        noise = [torch.rand(2, generator=torch.Generator().manual_seed(row_id)) for row_id in rows.ids]
        return {"y": found + torch.stack(noise)}


def make_flow(folder: str) -> df.Flow:
    """Return the flow: worker 0 trains, weights are mixed into a role of worker 1, and worker 2 has no training state.

    Args:
        folder: Folder of the journal.
    """
    actor = df.place(Model, name="actor")
    average = df.place(Model, on=[1], name="average")
    gen = df.place(Model, on=[2], follows=actor, name="gen")
    after = [
        df.param_realloc(actor, average, eta=0.25),
        df.hook(shrink),
        df.publish(gen),
        df.hook(shrink, on=[average], every=3),
    ]
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(factor, "y -> factor", rows=ROWS),
        df.call(actor.train, "x, y, factor", rows=ROWS, after=after),
    ]
    journal = df.Journal(folder, 2, 9)
    return df.Flow(calls, source=numbers(), group=2, digests=True, journal=journal)


@pytest.mark.timeout(6 * WATCHDOG_S)
def test_all_processes_one_after_the_other_in_one_run(tmp_path: Path) -> None:
    """After each step the next process is killed in the step after it, and the master is the last one."""
    n_workers, n_steps = 3, 6
    flow, _ = in_forks("test_each_process_killed", "make_flow", folder=str(tmp_path / "undisturbed"))
    torch.manual_seed(3)
    with flow:
        list(flow.steps(n_steps))
    expected = weights_of(tmp_path / "undisturbed", make_flow)
    arguments, hosts = {"folder": str(tmp_path / "j")}, ("", "far", "far")
    with HostWorkers(
        tmp_path, "test_each_process_killed:make_flow", arguments, hosts=hosts, again=range(3)
    ) as workers:
        run = PacedRun(workers, n_steps, tmp_path / "steps")
        killed = set()
        for worker in range(n_workers):
            run.run_until(worker + 1, then=worker + 2)
            killed.add(run.kill_worker(worker))
        run.run_until(n_workers + 1, then=n_steps)
        run.kill_master()
        run.start()
        assert run.end() == 0
        assert sorted(set(run.steps())) == list(range(1, n_steps + 1))
        assert len(killed) == n_workers
    found = weights_of(tmp_path / "j", make_flow)
    assert {step for step, _, _ in found} == {n_steps}
    assert same(found, expected)
