"""Rounds of the parameter server beside plain HTTP with as many bytes, and beside ComputeShare's own code.

``python -m benches.paramserver --computeshare FOLDER`` with a checkout of alphastar-avi/computeShare, and the packages
that its server imports; without the option it is left out. Medians of turns that alternate, in seconds of one round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
from pathlib import Path
from typing import Any

from . import paramserver_ways as ways
from .machine import describe_machine
from .proc import cpu_s


def measure(setting: ways.Setting, turns: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of a round of both, and their ratio in each turn."""
    with (
        ways.Way(ways.our_server, ways.our_worker, setting) as ours,
        ways.Way(ways.plain_server, ways.plain_worker, setting) as floor,
    ):
        found: dict[str, list[float]] = {"ours_s": [], "floor_s": [], "ours_cpu_s": [], "floor_cpu_s": []}
        both = {"ours": ours, "floor": floor}
        for way in both.values():
            way.rounds(1)
        before, pid = ours.bytes, ours.server.pid
        server_s = cpu_s(pid)
        for turn in range(turns):
            for name in sorted(both, reverse=turn % 2 == 0):
                used_s = both[name].cpu_s()
                found[f"{name}_s"].append(both[name].rounds(rounds))
                found[f"{name}_cpu_s"].append((both[name].cpu_s() - used_s) / rounds)
        n = turns * rounds
        travelled = [sum(a) - sum(b) for a, b in zip(ours.bytes, before, strict=True)]
        return {
            **{name: _spread(values) for name, values in found.items()},
            "ratio": _spread([a / b for a, b in zip(found["ours_s"], found["floor_s"], strict=True)]),
            "cpu_ratio": _spread(
                [a / b for a, b in zip(found["ours_cpu_s"], found["floor_cpu_s"], strict=True)]
            ),
            "server_cpu_s": round((cpu_s(pid) - server_s) / n, 3),
            "bytes_per_worker": max(travelled) // n,
        }


def measure_computeshare(setting: ways.Setting, rounds: int) -> dict[str, Any]:
    """Return the seconds of a round of its server and its worker's functions, and the bytes."""
    with ways.Way(ways.their_server, ways.their_worker, setting) as theirs:
        seconds, before = [], [(0, 0)] * setting.workers
        travelled = 0
        for _ in range(rounds):
            seconds.append(theirs.rounds(1))
            travelled = max(sum(a) - sum(b) for a, b in zip(theirs.bytes, before, strict=True))
            before = theirs.bytes
        return {"theirs_s": _spread(seconds), "bytes_per_worker": travelled}


def compare(setting: ways.Setting, options: argparse.Namespace) -> dict[str, Any]:
    """Return rounds of ours, with the floor, and then of ComputeShare, at one size."""
    ours = measure(setting, options.turns, options.rounds)
    theirs = measure_computeshare(setting, options.computeshare_rounds)
    return {
        "parameters": setting.n,
        "ours_s": ours["ours_s"],
        "floor_s": ours["floor_s"],
        **theirs,
        "times_as_long": round(theirs["theirs_s"]["median"] / ours["ours_s"]["median"], 1),
        "times_the_bytes": round(theirs["bytes_per_worker"] / ours["bytes_per_worker"], 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=21, help="of the model, 1.05 M parameters each")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3, help="of a turn")
    parser.add_argument("--codec", default="bf16", help="of pushes")
    parser.add_argument("--pull", default="bf16", help="codec of weights")
    parser.add_argument("--planes", action="store_true", help="compress")
    parser.add_argument("--save-every", type=int, default=1 << 30, help="rounds between two state files")
    parser.add_argument("--computeshare", type=Path, help="folder with its code")
    parser.add_argument("--computeshare-rounds", type=int, default=2)
    parser.add_argument(
        "--computeshare-layers", type=int, nargs="*", help="sizes at which both are compared; else --layers"
    )
    options = parser.parse_args()
    machine = describe_machine()
    with ways.files() as folder:
        setting = ways.Setting(
            options.layers, options.workers, options.codec, options.pull, options.planes, options.save_every,
            folder,
        )  # fmt: skip
        result = {"machine": machine, "setting": {**dataclasses.asdict(setting), "parameters": setting.n}}
        del result["setting"]["folder"]
        result["rounds"] = measure(setting, options.turns, options.rounds)
        if options.computeshare is not None:
            os.environ["COMPUTESHARE"] = str(options.computeshare.resolve())
            result["computeshare"] = [
                compare(dataclasses.replace(setting, layers=layers), options)
                for layers in options.computeshare_layers or [options.layers]
            ]
        result["load_after"] = os.getloadavg()[0]
    print(json.dumps(result, indent=1))


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
