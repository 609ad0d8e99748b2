"""The command line: `python -m benches [run | report | list]`."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from benches import broker_alone, growth, lane_alone, recovery, slots, switching
from benches.machine import REPOSITORY, describe_commit, describe_machine
from benches.report import write_report
from benches.rounds import compare
from benches.scenarios import SCENARIOS, Scenario

RESULTS = REPOSITORY / "benches" / "results"
PARTS: dict[str, Any] = {
    "slots": slots,
    "growth": growth,
    "lane_alone": lane_alone,
    "broker_alone": broker_alone,
    "recovery": recovery,
    "switching": switching,
}


def main(arguments: list[str]) -> int:
    """Parse the arguments, run the command, and return the exit status: 1 if a scenario failed."""
    options = _parse(arguments)
    if options.command == "list":
        print("\n".join(part.name for part in SCENARIOS), *(part.NAME for part in PARTS.values()), sep="\n")
        return 0
    if options.command == "report":
        _report(Path(options.file) if options.file else newest(RESULTS))
        return 0
    return run(options, arguments)


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Measure, and write the results after every scenario; after a full run also the page."""
    baseline, _, candidate = options.packages.partition(",")
    if not candidate:
        print(
            f"--packages wants two modules, as in softs,softs_fast; got {options.packages!r}", file=sys.stderr
        )
        return 2
    n_rounds = options.rounds or (1 if options.quick else 3)
    seconds = options.seconds or (0.5 if options.quick else 1.5)
    idle_s = 3.0 if options.quick else 10.0
    chosen = [
        scenario
        for scenario in SCENARIOS
        if re.search(options.only, scenario.name) and (scenario.quick or options.only or not options.quick)
    ]
    wanted = {key: part for key, part in PARTS.items() if re.search(options.only, part.NAME)}
    if not chosen and not wanted:
        print(f"no scenario matches {options.only!r}; see `python -m benches list`", file=sys.stderr)
        return 2
    commit, now = describe_commit(), datetime.datetime.now(datetime.UTC)
    name = options.name or f"{now:%Y-%m-%d}-{commit['hash'][:9] or 'no-commit'}"
    result: dict[str, Any] = {
        "name": name,
        "date": now.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benches", *arguments]),
        "quick": options.quick,
        "packages": [baseline, candidate],
        "rounds": n_rounds,
        "commit": commit,
        "machine": describe_machine(),
        "scenarios": [],
    }
    started = time.monotonic()
    for number, scenario in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}, {time.monotonic() - started:.0f} s] {scenario.name}", flush=True)
        result["scenarios"].append(_measure(scenario, baseline, candidate, n_rounds, seconds, idle_s))
        _write(RESULTS / f"{name}.json", result)
    for key, part in wanted.items():
        print(f"[{time.monotonic() - started:.0f} s] {part.NAME}", flush=True)
        result[key] = part.measure(baseline, options.quick)
        _write(RESULTS / f"{name}.json", result)
        print(f"    {json.dumps(result[key])}")
    print(f"wrote {RESULTS / name}.json after {time.monotonic() - started:.0f} s")
    if options.quick or options.only:
        print(f"`python -m benches report {RESULTS / name}.json` puts it into the page")
    else:
        _report(RESULTS / f"{name}.json")
    return int(any("error" in part for part in [*result["scenarios"], *(result[key] for key in wanted)]))


def newest(folder: Path) -> Path:
    """The results file with the latest date inside; those of `softs-fast gpu` begin with its name, not with a date.

    Raises:
        FileNotFoundError: there is none.
    """
    files = list(folder.glob("[0-9]*.json"))
    if not files:
        raise FileNotFoundError(f"no results in {folder}; run `python -m benches` first")
    return max(files, key=lambda path: str(json.loads(path.read_text())["date"]))


def _report(results: Path) -> None:
    for path in write_report(results):
        print(f"wrote {path}")


def _measure(
    scenario: Scenario, baseline: str, candidate: str, n_rounds: int, seconds: float, idle_s: float
) -> dict[str, Any]:
    idle = scenario.workload == "idle"
    return compare(
        scenario,
        scenario.sides(baseline, candidate),
        1 if idle else n_rounds,
        idle_s if idle else seconds * scenario.length,
        lambda line: print(f"    {line}", flush=True),
    )


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result, indent=1) + "\n")
    unfinished.replace(path)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benches",
        description="Compare softs_fast with softs.",
        epilog="Results: benches/results/*.json",
    )
    parser.add_argument("command", nargs="?", default="run", choices=("run", "report", "list"))
    parser.add_argument("file", nargs="?", help="of report: the results (default: the newest)")
    parser.add_argument(
        "--quick", action="store_true", help="one short round of the main scenarios, two to three minutes"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only scenarios with a name that contains this"
    )
    parser.add_argument(
        "--packages", default="softs,softs_fast", metavar="A,B", help="baseline and candidate modules"
    )
    parser.add_argument("--rounds", type=int, help="runs of each side per scenario (default 3)")
    parser.add_argument("--seconds", type=float, help="length of one run (default 1.5)")
    parser.add_argument("--name", help="name of the results file (default: date and commit)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
