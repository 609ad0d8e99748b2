"""The simulated fleet beside real processes: ``python -m benches.fleet_hosts``.

Sixteen hosts on this machine, each in namespaces of its own: a student's, and fifteen with suppliers that sleep in each
call, so that the cores hardly count. Brokers, encrypted links, lanes and loaders are those that run in production. Prints for each
fault what was measured, and what `fleet_sim` says of the same fleet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import softs_fast as sf
from benches import rust_examples
from benches.fleet_simulation import Run, rates
from benches.machine import REPOSITORY
from softs_fast.trust import TlsFiles

if TYPE_CHECKING:
    from networks import Host

N_HOSTS, PER_HOST, N_SLOTS, BATCH_SIZE = 16, 4, 192, 4
#: int64 of a sample: 12 KB.
WIDTH = 1500
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (WIDTH,), "int64")])
CALL_S, START_S, CUT_S, STEP_MS = 0.2, 1.0, 5.0, 100
#: Real hosts take so much longer to start, so their fault is later than that of `fleet_sim`.
FAULT_S, LATE_S = 5.0, 3.0
#: How long each scenario of `fleet_sim` takes, seconds, and how many of the last hosts its fault is of.
SCENARIOS = {"join-storm": (10, 0), "rack": (15, 8), "partition": (20, 1), "slow": (20, 1)}
PORT = 4700


def teach(folder: Path, place: str, token: TlsFiles, seed: int) -> None:
    """Be the broker, the link and the suppliers of a host, until it ends."""
    import torch

    chance = random.Random(seed)

    def make(product_id: str) -> dict[str, Any]:
        slowness = 10.0 if (folder / "slow").exists() else 1.0
        time.sleep(chance.uniform(0.5, 1.5) * CALL_S * slowness)
        return {"x": torch.zeros(WIDTH, dtype=torch.int64)}

    await_file(folder.parent / "go")
    time.sleep(chance.uniform(0.0, START_S))
    endpoints = sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
    with sf.Broker(endpoints):
        for _ in range(PER_HOST):
            sf.Supplier(make, product_ids=["p"], endpoint=endpoints.backend, batch_config=CONFIG).start()
        with sf.HostLink(endpoints, connect=[place], credentials=token) as link:
            (folder / "dials").touch()
            link.wait()


def study(folder: Path, place: str, token: TlsFiles) -> None:
    """Be the broker, the link and the student of a host, and write when each batch came."""
    times = []
    endpoints = sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
    with (
        sf.Broker(endpoints),
        sf.HostLink(endpoints, listen=place, credentials=token),
        sf.SoftDataLoader(
            "p", endpoints.frontend, CONFIG, num_slots=N_SLOTS, batch_size=BATCH_SIZE, ordered=True
        ) as loader,
    ):
        (folder / "ready").touch()
        for _ in loader:
            times.append(time.monotonic())
            if (folder / "stop").exists():
                break
    (folder / "new").write_text(json.dumps(times))
    (folder / "new").rename(folder / "times")


def await_file(path: Path, timeout_s: float = 60.0) -> None:
    """Wait until another process has made a file.

    Raises:
        TimeoutError: it has not.
    """
    end_s = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"there is no {path}")
        time.sleep(0.01)


def on_host(host: Host, what: Callable[..., None], *arguments: object) -> None:
    """Run a function in a process of a host, which ends with the host."""
    from networks import move_to

    if child := os.fork():
        os.waitpid(child, 0)
        return
    # What this process would do next, its parent does.
    try:
        move_to(host.pid)
        if os.fork() == 0:
            what(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def measure(scenario: str) -> Run:
    """Run real processes, and return what a report of `fleet_sim` has of samples."""
    from networks import Network

    seconds, n_faulty = SCENARIOS[scenario]
    seconds += round(LATE_S)
    with TemporaryDirectory(prefix="fh") as name, Network() as network:
        folders = [Path(name, str(number)) for number in range(N_HOSTS)]
        for folder in folders:
            folder.mkdir()
        token_file = Path(name, "token")
        token_file.touch(0o600)
        token_file.write_text("a" * 32 + "\n")
        token = TlsFiles(token_file=token_file)
        hosts = [network.host() for _ in folders]
        place = f"{hosts[0].address}:{PORT}"
        on_host(hosts[0], study, folders[0], place, token)
        for number in range(1, N_HOSTS):
            on_host(hosts[number], teach, folders[number], place, token, number)
        await_file(folders[0] / "ready")
        # Those with teachers are ready, too.
        time.sleep(1.0)
        Path(name, "go").touch()
        began_s = time.monotonic()
        time.sleep(FAULT_S + LATE_S)
        for host, folder in list(zip(hosts, folders, strict=True))[N_HOSTS - n_faulty :]:
            if scenario == "slow":
                (folder / "slow").touch()
            else:
                host.cut()
                if scenario == "rack":
                    # As when the power fails: no kernel says that its processes have ended.
                    host.end()
        if scenario == "partition":
            time.sleep(CUT_S)
            hosts[-1].mend()
        time.sleep(max(0.0, began_s + seconds - time.monotonic()))
        (folders[0] / "stop").touch()
        await_file(folders[0] / "times")
        times = [at - began_s for at in json.loads((folders[0] / "times").read_text())]
        # Files have another clock than the times.
        began = (folders[0].parent / "go").stat().st_mtime
        started_s = max((folder / "dials").stat().st_mtime for folder in folders[1:]) - began
    samples = [0] * (seconds * 1000 // STEP_MS + 1)
    for at in times:
        samples[min(int(at * 1000 / STEP_MS), len(samples) - 1)] += BATCH_SIZE
    pause_s = max(later - earlier for earlier, later in itertools.pairwise(times))
    times_ms = {"step_ms": STEP_MS, "fault_ms": 1000 * (FAULT_S + LATE_S), "longest_pause_ms": 1000 * pause_s}
    return {"samples": samples, "seconds": seconds, "started_s": started_s, **times_ms}


def simulate(scenario: str, seed: int) -> Run:
    """Return the report of `fleet_sim` for the same fleet."""
    n_suppliers = PER_HOST * (N_HOSTS - 1)
    sizes = ["--hosts", N_HOSTS, "--suppliers", n_suppliers, "--students", 1, "--students-per-host", 1]
    more = ["--slots", N_SLOTS, "--sample-bytes", 8 * WIDTH, "--call-ms", round(CALL_S * 1000)]
    report = rust_examples.run("fleet_sim", scenario, *sizes, *more, "--seed", seed)
    return {**report, "started_s": START_S}


def facts(scenario: str, run: Run) -> dict[str, float]:
    """Return what is compared: the rate in the two seconds before the fault, and in all that follow it, and times.

    Real hosts share the cores of one machine, so the time of the whole rate counts from when the last one has started.
    """
    all_rates, n = rates(run), 1000 // STEP_MS
    has_fault = SCENARIOS[scenario][1] > 0
    fault = round(run["fault_ms"] / STEP_MS) if has_fault else len(all_rates)
    rate = statistics.median(all_rates[fault - 2 * n : fault])
    if not has_fault:
        whole = next(at for at, one in enumerate(all_rates) if one >= 0.95 * rate)
        return {"samples/s": rate, "95 % of it after, s": whole / n - run["started_s"]}
    after = run["samples"][fault : run["seconds"] * n]
    return {
        "samples/s": rate,
        "samples/s since then": n * sum(after) / (run["seconds"] * n - fault),
        "longest pause, s": run["longest_pause_ms"] / 1000,
    }


def main() -> int:
    """Print a row for each measure; the exit status is 0 also where this machine has no namespaces."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, help="may be repeated (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each, of which medians count (%(default)s)"
    )
    options = parser.parse_args()
    # Before forks have torch from here: a process that moves to a host has one thread.
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(REPOSITORY / "tests" / "peers"))
    import networks
    import torch  # noqa: F401

    if why := networks.why_not():
        print(f"skipped: {why}")
        return 0
    rust_examples.build("softs-proto", "fleet_sim")
    print("| fault | measure | simulated | real | real / simulated |\n| --- | --- | ---: | ---: | ---: |")
    for scenario in options.scenario or SCENARIOS:
        runs = [(simulate(scenario, 1 + seed), measure(scenario)) for seed in range(options.rounds)]
        pairs = [tuple(facts(scenario, run) for run in pair) for pair in runs]
        started_s = statistics.median(real["started_s"] for _, real in runs)
        print(f"{scenario}: the last host had started after {started_s:.1f} s", file=sys.stderr)
        for name in pairs[0][0]:
            simulated, real = (statistics.median(pair[which][name] for pair in pairs) for which in (0, 1))
            row = (scenario, name, f"{simulated:,.2f}", f"{real:,.2f}", f"{real / simulated:.2f}")
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
