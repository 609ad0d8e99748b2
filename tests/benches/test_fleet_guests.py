"""Machines of Python in the simulated fleet: the autoscaler, the ranks of a job, and a parameter server."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from benches import fleet_autoscaler, fleet_job, fleet_rounds, rust_examples

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SIZES = {"hosts": 41, "suppliers": 160, "slots": 256, "sample_bytes": 12000, "seed": 3}


@pytest.fixture(scope="module", autouse=True)
def fleet_sim() -> None:
    """Build the simulation."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is missing, which builds the simulation")
    rust_examples.build("softs-proto", "fleet_sim")


def test_the_autoscaler_has_the_hosts_that_a_load_needs_and_the_same_run_for_the_same_seed() -> None:
    runs: list[dict[str, Any]] = [fleet_autoscaler.run(students=8, **SIZES) for _ in range(2)]
    table = fleet_autoscaler.table(runs[0]["looks"])
    assert "never" not in table, table
    assert runs[0]["digest"] == runs[1]["digest"]
    assert runs[0]["looks"] == runs[1]["looks"]


def test_a_job_goes_on_with_the_ranks_that_are_left_and_those_that_come_back() -> None:
    run = fleet_job.run(students=32, **SIZES)
    epochs = [(epoch.n_ranks, epoch.n_steps > 0) for epoch in run["epochs"]]
    assert epochs[0] == (32, True), run["epochs"]
    assert (16, True) in epochs, "two hosts of four are lost or cut off"
    assert epochs[-1] == (24, True), "and one is back"


def test_rounds_go_on_without_lost_workers_and_after_the_server_was_killed() -> None:
    for run in fleet_rounds.run(students=32, **SIZES):
        n_pushes = {step.n_pushes for step in run["steps"]}
        assert {32, 24, 16} <= n_pushes, (
            "with all, without a host that was lost, and without one that was cut off"
        )
        served_s = fleet_rounds.KILLED_AT_S + fleet_rounds.RESTART_S
        assert max(step.n_pushes for step in run["steps"] if step.at_s > served_s) > 16, "this one is back"
