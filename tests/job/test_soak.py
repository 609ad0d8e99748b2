"""A job of real processes of which one is killed or stopped every few seconds, for minutes: each number is trained once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
import ranks
from coordinator_process import Cluster, Coordinator
from live_job import LiveJob, has, mediate, replayed
from waiting import free_ports

from softs_fast.job.retention import steps_in

SECONDS = float(os.environ.get("SOFTS_FAST_STRESS_S", "1200"))
#: From one fault to the next, at least; a process is stopped for less than it takes to be given up.
PAUSE_S, STOP_S = 3.0, 1.0
KINDS = ("rank", "rank", "join", "supplier", "supplier", "broker", "coordinator", "stop", "stop", "all")


def sealed(folder: Path) -> int:
    """Return the step of the newest checkpoint; 0 without any."""
    return max(steps_in(one.name for one in folder.glob("*")), default=0) if folder.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 1800)
def test_whatever_dies_each_number_is_trained_once(
    frontend: str, backend: str, short_path: Path, cluster: Cluster
) -> None:
    seed = int(os.environ.get("SOFTS_FAST_STRESS_SEED", str(random.randrange(10**6))))
    chance = random.Random(seed)
    print(f"SOFTS_FAST_STRESS_SEED={seed}")
    listen = f"127.0.0.1:{free_ports()[0]}"

    def coordinator() -> Coordinator:
        options = ("--min-workers", "1", "--max-workers", "4", "--form-timeout", "0.5")
        return cluster.coordinator(
            "--job", "digits", "--state", str(short_path / "state"), *options, listen=listen
        )

    def mediator() -> ranks.Ranks:
        started = ranks.start(mediate, 1, frontend, backend)
        assert started.receive(0) == "serves"
        return started

    def restart(kind: str) -> None:
        nonlocal broker
        if kind == "supplier":
            job.start_supplier()
            job.kill_supplier()
        elif kind == "broker":
            broker.stop()
            broker = mediator()
        else:
            job.coordinator.kill()
            job.coordinator = coordinator()

    broker = mediator()
    job = LiveJob(frontend, backend, short_path / "gate", coordinator(), 10**6)
    job.checkpoints = short_path / "checkpoints"
    last, kinds = 0, dict.fromkeys(KINDS, 0)
    try:
        job.allow(0)
        for _ in range(3):
            job.start_supplier()
        alive = [job.start() for _ in range(3)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            last += chance.randint(5, 25)
            # Ranks are in the midst of a step, or wait for its samples.
            job.allow(last + chance.randint(0, 20))
            # It has the weights, so others may be killed.
            watched = chance.choice(job.with_step(last, alive))
            kind = chance.choice(KINDS)
            if kind in ("supplier", "broker", "coordinator"):
                restart(kind)
            elif kind == "stop":
                pid = chance.choice([*job.pids(), broker.processes[0].pid, job.coordinator.process.pid])
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOP_S)
                os.kill(pid, signal.SIGCONT)
            elif kind == "all" and sealed(job.checkpoints):
                for one in alive:
                    one.kill()
                # Ranks alone, or all that there is.
                if chance.random() < 0.5:
                    for other in ("broker", "coordinator", *["supplier"] * 3):
                        restart(other)
                last = sealed(job.checkpoints)
                job.kill_all(last)
                job.allow(last)
                alive = [job.start() for _ in range(chance.randint(2, 4))]
            elif kind == "rank" and len(alive) > 2:
                victim = chance.choice([one for one in alive if one is not watched])
                alive.remove(victim)
                victim.kill()
            elif len(alive) < 4:
                kind = "join"
                alive.append(job.start())
            else:
                continue
            kinds[kind] += 1
            time.sleep(PAUSE_S)
        job.coordinator.status(has(len(alive)))
        job.n_steps = max(max(one.committed, default=0) for one in job.ranks) + 30
        job.allow(job.n_steps)
        for one in alive:
            one.until(job.n_steps)
    finally:
        job.end()
        broker.stop()
    sizes = job.recount()
    print(f"{job.n_steps} steps of {sorted(set(sizes))} ranks; {kinds}")
    assert {one.committed[job.n_steps]["digest"] for one in alive} == {replayed(sizes).digest()}
