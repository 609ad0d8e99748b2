"""Thousands of hosts in virtual time: `python -m benches.fleet_simulation --hosts 1000 --suppliers 8000 --students 8`.

Runs `rust/proto/examples/fleet_sim` once for each scenario, prints a table, and draws samples per second over time.
`--seeds N` instead runs N small fleets with faults of all kinds, and N for each mistake that they are to find.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benches import rust_examples
from benches.chart import CANDIDATE, INK, QUIET
from benches.machine import REPOSITORY

SCENARIOS = {
    "join-storm": "all hosts start within 1 s",
    "partition": "a tenth of the hosts is cut off for 5 s",
    "switch": "two models are set",
    "rack": "a rack of 20 hosts is lost",
    "slow": "a tenth of the hosts becomes 10 times slower",
    "broker": "the students' brokers are down for 1 s",
}
#: What machines of Python decide in the fleet.
GUIDED = {
    "autoscaler": "the load of students steps, and hosts are added and removed",
    "job": "hosts of an elastic job are lost, and cut off",
    "rounds": "hosts of a parameter server's workers are lost and cut off, and it is killed",
}
BUGS = ("double-lease", "lost-credit", "stale-switch")
#: Each rank has slots of its own on each host with teachers, which is more memory than one machine has for many ranks.
MOST_RANKS = 8
#: An elastic job, and a parameter server, have so many ranks at least.
LEAST_RANKS = 64
#: Steps of the report that are averaged, and the part of the rate that counts as all of it.
WINDOW = 10
WHOLE = 0.95
#: The lowest rate is searched for so long after the fault: ordered streams also come in bursts by themselves.
AFTER_S = 5

Run = dict[str, Any]


def rates(run: Run) -> list[float]:
    """Return samples per second, the mean of a second, at each step of a run."""
    n_steps = round(run["seconds"] * 1000 / run["step_ms"])
    samples = [*run["samples"], *[0] * n_steps][:n_steps]
    per_s = 1000 / run["step_ms"]
    windows = [samples[max(0, at + 1 - WINDOW) : at + 1] for at in range(n_steps)]
    return [per_s * statistics.fmean(window) for window in windows]


def summary(run: Run) -> Run:
    """Return what the table shows of a run.

    Returns:
        `rate` (samples per second before the fault; of a storm or a switch at the end), `joined_ms` (when the last
        session began), `whole_ms` (when the rate first was 95 % of that), `least` (the lowest rate in the 5 s after the fault, as
        a part of the rate), `recovered_ms` (from the fault to 95 % of the rate; None if that is not reached) and `wasted`
        (samples that were made and not handed out, as a part of those made).
    """
    all_rates, fault = rates(run), round(run["fault_ms"] / run["step_ms"])
    steady = (
        all_rates[-2 * WINDOW :]
        if run["scenario"] in ("join-storm", "switch")
        else all_rates[fault - 2 * WINDOW : fault]
    )
    rate = statistics.median(steady)
    after = all_rates[fault:]
    n_after = min(len(after), round(AFTER_S * 1000 / run["step_ms"]))
    lowest = min(range(n_after), key=after.__getitem__)
    recovered = [at for at, one in enumerate(after) if at >= lowest and one >= WHOLE * rate]
    sessions = run["sessions"]
    whole = [at for at, one in enumerate(all_rates) if one >= WHOLE * rate]
    return {
        "rate": rate,
        "joined_ms": sessions.index(max(sessions)) * run["step_ms"],
        "whole_ms": whole[0] * run["step_ms"],
        "least": after[lowest] / rate if rate else 0.0,
        "recovered_ms": recovered[0] * run["step_ms"] if recovered else None,
        "wasted": 1 - run["handed_out"] / max(1, run["made"]),
    }


def table(runs: list[Run]) -> str:
    """Return the runs as a table of Markdown."""
    head = (
        "scenario", "samples/s", "first sample", "sessions by", "95 % of the rate by", "lowest rate after the fault",
        "95 % again after", "longest pause", "wasted", "busiest link thread: student, teacher", "CPU time",
    )  # fmt: skip
    rows = [head, ("---",) + ("---:",) * (len(head) - 1)]
    for run in runs:
        of = summary(run)
        has_fault = run["scenario"] not in ("join-storm", "switch")
        again = "never" if of["recovered_ms"] is None else f"{of['recovered_ms'] / 1000:.1f} s"
        again = "-" if of["least"] >= WHOLE else again
        rows.append((
            run["scenario"], f"{of['rate']:,.0f}", f"{run['first_sample_ms']:,.0f} ms", f"{of['joined_ms'] / 1000:.1f} s",
            f"{of['whole_ms'] / 1000:.1f} s", f"{of['least']:.0%}" if has_fault else "-", again if has_fault else "-",
            f"{run['longest_pause_ms'] / 1000:.2f} s", f"{of['wasted']:.1%}",
            f"{run['busiest_student_link']:.0%}, {run['busiest_teacher_link']:.0%}", f"{run['cpu_s']:.1f} s",
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(runs: list[Run], path: Path) -> None:
    """Draw samples per second over time, one small chart for each run.

    Args:
        runs: Reports of the simulation.
        path: File to write; its suffix chooses the format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text and ids stay the same, so the file changes only with the numbers.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "benches", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt

    n_rows = (len(runs) + 1) // 2
    figure, axes = plt.subplots(n_rows, 2, figsize=(9.6, 1.9 * n_rows + 0.3), squeeze=False)
    for place, run in zip(axes.flat, runs, strict=False):
        step_s = run["step_ms"] / 1000
        all_rates = rates(run)
        times = [step_s * (at + 1) for at in range(len(all_rates))]
        place.fill_between(times, all_rates, color=CANDIDATE, alpha=0.15, linewidth=0)
        place.plot(times, all_rates, color=CANDIDATE, linewidth=1.4)
        place.set_title(
            (SCENARIOS | GUIDED).get(run["scenario"], run["scenario"]), loc="left", fontsize=9.5, color=INK
        )
        place.set_ylim(0, 1.1 * max(all_rates, default=1.0) or 1.0)
        place.set_xlim(0, run["seconds"])
        place.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f} k")
        place.tick_params(length=0, labelsize=8.5, labelcolor=QUIET)
        place.grid(color="#e6eaee", linewidth=0.8)
        place.spines[:].set_visible(False)
    for place in list(axes.flat)[len(runs) :]:
        place.set_visible(False)
    figure.supxlabel("seconds of virtual time; samples per second of all students", fontsize=9, color=QUIET)
    figure.tight_layout()
    figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def check(n_seeds: int) -> bool:
    """Run small fleets with faults of all kinds, print what was found, and return whether that is as it should be."""
    run = rust_examples.run("fleet_sim", "seeds", "--count", n_seeds)
    print(f"{n_seeds} seeds: {run['broken']} with a rule broken, {run['wall_s']:.1f} s")
    for example in run["examples"]:
        print(f"  {example}")
    is_right = run["broken"] == 0
    for bug in BUGS:
        run = rust_examples.run("fleet_sim", "seeds", "--count", n_seeds, "--bug", bug)
        print(f"{bug}: found by {run['broken']} of {n_seeds} seeds, first by seed {run['first_broken']}")
        is_right &= run["broken"] > 0
    return bool(is_right)


def guided(scenario: str, sizes: dict[str, int]) -> tuple[Run, str]:
    """Run a scenario of `GUIDED`; its report and its table."""
    if scenario == "autoscaler":
        from benches import fleet_autoscaler

        run = fleet_autoscaler.run(**sizes)
        return {**run, "scenario": scenario}, fleet_autoscaler.table(run["looks"])
    sizes = {**sizes, "students": max(LEAST_RANKS, sizes["students"])}
    if scenario == "rounds":
        sys.path.insert(0, str(REPOSITORY / "tests" / "paramserver" / "rounds"))
        from benches import fleet_rounds

        runs = fleet_rounds.run(**sizes)
        return {**runs[0], "scenario": scenario}, fleet_rounds.table(runs)
    sys.path.insert(0, str(REPOSITORY / "tests" / "coordination" / "job"))
    from benches import fleet_job

    run = fleet_job.run(**sizes)
    return {**run, "scenario": scenario}, fleet_job.table(run["epochs"])


def main() -> int:
    """Run what the arguments ask for; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=1000, help="hosts (%(default)s)")
    parser.add_argument("--sample-bytes", type=int, default=12000, help="bytes of a sample (%(default)s)")
    parser.add_argument("--suppliers", type=int, default=8000, help="suppliers on all hosts (%(default)s)")
    text = f"students, 8 on a host; in the scenarios job and rounds at least {LEAST_RANKS} (%(default)s)"
    parser.add_argument("--students", type=int, default=8, help=text)
    parser.add_argument("--slots", type=int, default=3072, help="slots of each student (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of chance (%(default)s)")
    parser.add_argument("--scenario", action="append", help="scenario to run; may be repeated (default: all)")
    parser.add_argument(
        "--picture", type=Path, help="file to draw to, such as docs/scale.svg (default: none)"
    )
    parser.add_argument("--seeds", type=int, help="run so many small fleets with faults instead")
    options = parser.parse_args()
    rust_examples.build("softs-proto", "fleet_sim")
    if options.seeds:
        return 0 if check(options.seeds) else 1
    names = ("hosts", "suppliers", "students", "slots", "sample_bytes", "seed")
    sizes = {name: getattr(options, name) for name in names}
    runs, pictures = [], []
    for scenario in options.scenario or [*SCENARIOS, *GUIDED]:
        if scenario in GUIDED:
            run, its_table = guided(scenario, sizes)
            print(f"{scenario}, {run['wall_s']:.1f} s, digest {run['digest']}:\n\n{its_table}\n")
            pictures.append(run)
            continue
        of_it = dict(sizes)
        if scenario == "switch" and options.students > MOST_RANKS:
            of_it["students"] = MOST_RANKS
        arguments = [part for name, value in of_it.items() for part in (f"--{name.replace('_', '-')}", value)]
        runs.append(rust_examples.run("fleet_sim", scenario, *arguments))
        print(f"{scenario}: {runs[-1]['wall_s']:.1f} s", file=sys.stderr)
    if runs:
        print(table(runs))
    if options.picture:
        draw([*runs, *pictures], REPOSITORY / options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
