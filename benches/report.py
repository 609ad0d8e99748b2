"""Makes the tables of docs/benchmarks.md and README.md, and the chart, from one results file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benches import beside, chart
from benches.machine import REPOSITORY
from benches.markdown import Record, measured, medians, section

PAGE = REPOSITORY / "docs" / "benchmarks.md"
README = REPOSITORY / "README.md"
CHART = REPOSITORY / "docs" / "benchmarks.svg"
BEGIN = "<!-- results: begin (made by `python -m benches report`) -->"
END = "<!-- results: end -->"


def write_report(results: Path) -> list[Path]:
    """Replace the text between the markers of the page and of the README, and draw the chart.

    Returns:
        The files that were written.

    Raises:
        ValueError: a page has no markers.
    """
    result = json.loads(results.read_text())
    replace(PAGE, tables(result, results.name))
    replace(README, summary(result))
    written = [PAGE, README]
    if _sections(result):
        chart.draw(result, _sections(result), CHART)
        written.append(CHART)
    return written


def summary(result: Record) -> str:
    """Return the few rows that the README shows: scenarios that other software was measured in, too."""
    machine, commit = result["machine"], result["commit"]["hash"][:9]
    where = f"`make bench`, commit `{commit}`, {machine['cpu']}, {machine['cores']} cores, medians."
    return f"{beside.packages_and_others(result)}\n\n{where}\n"


def replace(page: Path, text: str, first: str = BEGIN) -> None:
    """Replace what is between the markers of a page.

    Raises:
        ValueError: the page has no markers.
    """
    head, begin, rest = page.read_text().partition(first)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{page} lacks the markers {first!r} and {END!r}; put them back where the tables belong"
        )
    page.write_text(f"{head}{first}\n\n{text}\n{END}{tail}")


def tables(result: Record, source: str) -> str:
    """All tables of a results file, in Markdown."""
    machine, commit = result["machine"], result["commit"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    changed = " with uncommitted changes" if commit["dirty"] else ""
    rounds = "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"
    parts = [
        f"`{result['command']}` on {result['date'][:10]}, commit `{commit['hash'][:9]}`{changed}, {rounds} "
        f"of each{', quick' if result['quick'] else ''}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}, Python {machine['python']}, {versions}. "
        f"Raw data: `benches/results/{source}`.",
        "![samples per second](benchmarks.svg)",
        _throughput(result),
        beside.other_ways(result),
        _latency(result),
        beside.switches(result),
        beside.switching(result),
        beside.training(result),
        _lost_slots(result),
        _idle(result),
        beside.slots(result),
        beside.growth(result),
        beside.lane_alone(result),
        _broker_alone(result),
        _recovery(result),
        _failed(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _throughput(result: Record) -> str:
    rows = []
    for scenario in measured(result, "samples_per_s"):
        theirs, ours = medians(scenario)
        gain = scenario["gains"]["samples_per_s"]
        rows.append(
            [
                scenario["name"],
                f"{theirs['samples_per_s']:,.0f}",
                f"{ours['samples_per_s']:,.0f}",
                _bandwidth(ours["samples_per_s"] * scenario["size_bytes"]),
                _gain(gain),
                f"{theirs['cpu_s_per_10000']:.2f}",
                f"{ours['cpu_s_per_10000']:.2f}",
            ]
        )
    baseline, candidate = result["packages"]
    heads = ["scenario", f"{baseline}, samples/s", f"{candidate}, samples/s", "GB/s", "gain",
             f"{baseline}, CPU s per 10,000", f"{candidate}, CPU s per 10,000"]  # fmt: skip
    return section("Samples per second, and what they cost", heads, rows)


def _latency(result: Record) -> str:
    rows = []
    for scenario in measured(result, "p50_us"):
        if scenario["workload"] == "one_by_one":
            theirs, ours = medians(scenario)
            figures = [f"{side[key]:,.1f}" for key in ("p50_us", "p99_us") for side in (theirs, ours)]
            rows.append([scenario["name"], *figures])
    baseline, candidate = result["packages"]
    heads = [
        "scenario",
        *(f"{name}, {key}" for key in ("p50 us", "p99 us") for name in (baseline, candidate)),
    ]
    return section("Time of one request, read and release", heads, rows)


def _lost_slots(result: Record) -> str:
    rows = []
    for scenario in measured(result, "lost_slots"):
        counts = []
        for side in scenario["sides"].values():
            lost, used = (sum(run[key] for run in side["rounds"]) for key in ("lost_slots", "slots_used"))
            counts.append(f"{lost} of {used}")
        rows.append([scenario["name"], *counts])
    return section("Slots that were never released", ["scenario", *result["packages"]], rows)


def _idle(result: Record) -> str:
    rows = []
    for scenario in (one for one in measured(result, "cpu_percent") if one["workload"] == "idle"):
        rows.append(
            [f"{scenario['seconds']:.0f} s", *(f"{side['cpu_percent']:.3f} %" for side in medians(scenario))]
        )
    return section(
        "Idle: CPU of broker, supplier and client together, in per cent of one core",
        ["for", *result["packages"]],
        rows,
    )


def _broker_alone(result: Record) -> str:
    record = result.get("broker_alone", {})
    if "ours" not in record:
        return ""
    ours, theirs = record["ours"], record.get("baseline")
    columns = [
        (f"{name}, {peers}", broker, dialect)
        for name, peers, broker, dialect in (
            (result["packages"][0], "softs peers", theirs, "softs"),
            ("ours", "softs peers", ours, "softs"),
            ("ours", "own peers", ours, "native"),
        )
        if broker is not None
    ]
    rows = [
        [f"orders/s, {n} client{'s'[: n > 1]}, 8 suppliers"]
        + [f"{broker['orders_per_s'][dialect][f'{n}_clients']:,.0f}" for _, broker, dialect in columns]
        for n in (1, 8, 32)
    ]
    trips = [broker[f"round_trip_{dialect}"] for _, broker, dialect in columns]
    for what, key in (
        ("there and back between two bare sockets: 2 hops", "raw_us"),
        ("request, answer: 2 hops", "request_us"),
        ("order, work, done, result: 4 hops", "order_us"),
    ):
        rows.append(
            [f"{what}, p50 / p99 us", *(f"{trip[key]['p50']:.1f} / {trip[key]['p99']:.1f}" for trip in trips)]
        )
    one_core = record.get("one_core", ours)
    growth, memory, idle = one_core["growth"], ours["memory"], ours["idle"]
    alone = [
        [
            f"{peers} peers",
            *(
                f"{one_core[f'round_trip_{dialect}'][key]['p50']:.1f}"
                for key in ("raw_us", "request_us", "order_us")
            ),
            f"{one_core[f'round_trip_{dialect}']['added_to_raw']:.1f}x",
        ]
        for peers, dialect in (("softs", "softs"), ("own", "native"))
    ]
    backgrounds = [
        (f"{growth['many']:,.0f} orders of {n} wait", growth[key])
        for n, key in (("one product", "many_queued"), ("as many products", "many_products"))
    ]
    grown = [
        [label, f"{one['order_us']['p50']:.1f} / {one['order_us']['p99']:.1f}", f"{one['orders_per_s']:,.0f}"]
        for label, one in [("10 orders wait", growth["10_queued"]), *backgrounds]
    ]
    kilobytes = memory["bytes_per_client"] / 1e3
    note = (
        f"{memory['clients']:,.0f} clients with {memory['orders_each']:.0f} waiting orders each take "
        f"{kilobytes:.1f} kB each in our broker. Beside {idle['clients']:,.0f} idle clients it used "
        f"{idle['cpu_us']:.0f} us of CPU and woke up {idle['wake_ups']:.0f} times in {idle['seconds']:.1f} s."
    )
    return "\n\n".join(
        [
            section("The broker alone", ["", *(label for label, _, _ in columns)], rows),
            section(
                "Our broker and its peers on one core, one order at a time, p50 us",
                ["", "two raw hops", "request, answer", "order, work, done, result", "added to two raw hops"],
                alone,
            ),
            section(
                "Growth of our broker, own peers, on one core",
                ["beside", "order, p50 / p99 us", "orders/s"],
                grown,
            ),
            note,
        ]
    )


def _recovery(result: Record) -> str:
    record = result.get("recovery", {})
    if "supplier_ms" not in record:
        return ""
    rows = [
        [what, f"{record[key]['median']:.1f}", f"{record[key]['max']:.1f}"]
        for what, key in (
            ("a supplier: its order has been served by another", "supplier_ms"),
            ("a client: the broker has removed it", "client_ms"),
            ("the broker, a new one is bound: the client has its next sample", "broker_ms"),
        )
    ]
    if "baseline_supplier_ms" in record:
        once = f"{record['baseline_supplier_ms']:,.1f}"
        rows.append([f"a supplier of {result['packages'][0]} (once)", once, once])
    return section(f"After kill -9, {record['n']} times each", ["of", "median ms", "max ms"], rows)


def _failed(result: Record) -> str:
    rows = [
        [scenario["name"], scenario["error"].splitlines()[0]]
        for scenario in result["scenarios"]
        if "error" in scenario
    ]
    return section("Failed", ["scenario", "error"], rows)


def _sections(result: Record) -> list[tuple[str, list[tuple[str, Record]]]]:
    kinds: list[tuple[str, Callable[[Record], bool]]] = [
        (
            "One by one",
            lambda one: one["workload"] == "one_by_one" and one["n_slots"] > 1 and not one["mixed"],
        ),
        ("One by one, one slot", lambda one: one["workload"] == "one_by_one" and one["n_slots"] == 1),
        ("Pipelined", lambda one: one["workload"] == "pipelined"),
        ("SoftDataLoader", lambda one: one["workload"] == "loader"),
        ("softs peers, new broker", lambda one: one["mixed"]),
    ]
    sections = []
    for heading, belongs in kinds:
        pairs = [(_short(one), one) for one in measured(result, "samples_per_s") if belongs(one)]
        if pairs:
            sections.append((heading, pairs))
    return sections


def _short(scenario: Record) -> str:
    return str(scenario["name"]).split(", ", 1)[1]


def _gain(gain: Record) -> str:
    least, most = min(gain["rounds"]), max(gain["rounds"])
    spread = f" ({least:.1f} to {most:.1f})" if len(gain["rounds"]) > 1 else ""
    return f"**{gain['median']:.1f}x**{spread}"


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f}" if bytes_per_s >= 1e8 else "-"
