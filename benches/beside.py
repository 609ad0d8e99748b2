"""Tables beside the comparison of the two packages: other software, training, switches, growth, memory, a lane."""

from __future__ import annotations

from benches.markdown import Record, further, measured, medians, section, table
from benches.scenarios import FASTER_FIFO, ICEORYX2, TORCH

# The opponents that the README names.
IN_README = (FASTER_FIFO, ICEORYX2, TORCH)


def other_ways(result: Record) -> str:
    """Samples per second, and their CPU time, of the candidate's options and of other software."""
    scenarios = [one for one in measured(result, "samples_per_s") if further(one)]
    names = _names(scenarios)
    rows = [
        [one["name"], _rate(medians(one)[1]), *(_rate(further(one).get(name)) for name in names)]
        for one in scenarios
    ]
    left_out = {name: text for one in result["scenarios"] for name, text in one.get("left_out", {}).items()}
    note = "; ".join(f"{name} ({_in_short(text)})" for name, text in left_out.items())
    return section(
        "Beside other ways: samples per second (CPU s per 10,000)",
        ["scenario", result["packages"][1], *names],
        rows,
        f"Not measured: {note}." if note else "",
    )


def packages_and_others(result: Record) -> str:
    """Return samples per second of both packages and of the software that the README names."""
    scenarios = [one for one in measured(result, "samples_per_s") if set(IN_README) & set(further(one))]
    names = [name for name in IN_README if name in _names(scenarios)]
    rows = []
    for one in scenarios:
        others = (further(one).get(name) for name in names)
        rows.append([one["name"], *(_count(side) for side in (*medians(one), *others))])
    return table(["samples per second", *result["packages"], *names], rows)


def training(result: Record) -> str:
    """Time of a training step with a loader, against one on tensors in memory."""
    scenarios = measured(result, "step_ratio")
    names = _names(scenarios)
    rows = []
    for one in scenarios:
        theirs, ours = medians(one)
        sides = [theirs, ours, *(further(one).get(name) for name in names)]
        ratios = [_step(side) if side else "-" for side in sides]
        rows.append([one["name"], f"{ours['memory_step_ms']:.1f} ms", *ratios])
    heads = ["scenario", "step on tensors in memory", *result["packages"], *names]
    title = "Training: a step fed by the loader, against one on tensors in memory (of it, until the batch is there)"
    return section(title, heads, rows)


def switches(result: Record) -> str:
    """Time from a change of the model to the first sample of the new one."""
    rows = []
    for one in measured(result, "switches"):
        for name, side in one["sides"].items():
            median = side["median"]
            times = [f"{median[key] / 1e3:.2f}" for key in ("p50_us", "p99_us")]
            rows.append([f"{one['name']}: {name}", *times, f"{median['stale_samples']:,.0f}"])
    heads = ["scenario", "p50 ms", "p99 ms", "samples of the old model"]
    return section("From set_model to the first sample of the new model", heads, rows)


def switching(result: Record) -> str:
    """Time from a change of the model to the first batch of the new one, with long calls that make many samples."""
    record = result.get("switching", {})
    if "loaders" not in record:
        return ""
    rows = [
        [name, *(f"{one[key]:.1f}" for key in ("p50_ms", "p99_ms", "max_ms")), f"{one['n_late']}", f"{one['n_stale']}"]
        for name, one in record["loaders"].items()
    ]  # fmt: skip
    note = (
        f"A call took {record['call_ms']:.1f} ms, so the limit is {record['limit_ms']:.1f} ms; "
        f"{record['n']} switches each."
    )
    heads = ["loader", "p50 ms", "p99 ms", "max ms", "beyond two calls and 1 ms", "batches of the old model"]
    title = "From set_model to the first batch of the new model, calls of 30 ms"
    return section(title, heads, rows, note)


def slots(result: Record) -> str:
    """Batches of the loader by the number of slots, beside the bare copies."""
    record = result.get("slots", {})
    if "cases" not in record:
        return ""
    rows = []
    for name, rates in record["cases"].items():
        figures = [f"{rate:,.0f}" for rate in rates.values()]
        rows.append([name, *figures, f"{min(rates.values()) / max(rates.values()):.2f}"])
    heads = ["600 KB, samples/s", *(f"{n} slots" for n in record["n_slots"]), "least to most"]
    note = f"Bare copies, 32 slots: {record['bare_copies']:,.0f} samples/s."
    return section("The number of slots: loader, batches of 32", heads, rows, note)


def growth(result: Record) -> str:
    """Cost of a sample beside more suppliers and clients, and the memory of each process."""
    record = result.get("growth", {})
    if "suppliers" not in record:
        return ""
    parts = []
    for key, beside in (("suppliers", "1 client"), ("clients", "1 supplier")):
        rows = [
            [str(one["n"]), f"{one['us']:.2f}", f"{one['cpu_us']:.2f}", f"{one['p50_us']:.1f} / {one['p99_us']:.1f}"]
            for one in record[key]
        ]  # fmt: skip
        heads = [key, "us per sample", "CPU us per sample", "one request, p50 / p99 us"]
        parts.append(section(f"More {key}, {beside}: one by one, 64 B, 16 slots", heads, rows))
    packages = list(record["memory"])
    rows = []
    for role in ("broker", "supplier", "client"):
        sides = [record["memory"][package][role] for package in packages]
        rows.append([role, *(f"{one['mb']:.1f} ({one['mb'] - one['imported_mb']:.1f})" for one in sides)])
    title = "Resident memory of a process beyond the slots, MB (since its imports)"
    return "\n\n".join([*parts, section(title, ["", *packages], rows)])


def lane_alone(result: Record) -> str:
    """A lane beside a bare atomic word with both ends polling, and beside a futex with both ends blocked."""
    record = result.get("lane_alone", {})
    if "looking" not in record:
        return ""
    rows = [
        [
            f"{distance} ({one['runs']} run{'s'[: one['runs'] > 1]})",
            f"{one['bare_word_ns']:.0f}",
            f"{one['one_way_16_ns_p50']:.0f} / {one['one_way_16_ns_p99']:.0f}",
            f"{one['to_bare_word']:.2f}x",
            f"{one['one_way_4096_ns_p50']:.0f} / {one['one_way_4096_ns_p99']:.0f}",
            f"{one['orders_16_per_s']:,.0f}",
            f"{one['orders_4096_per_s']:,.0f}",
        ]
        for distance, one in record["looking"].items()
    ]
    heads = ["CPUs", "bare word, ns", "16 slots, p50 / p99 ns", "to bare word", "4,096 slots, p50 / p99 ns",
             "orders/s, 16 slots", "orders/s, 4,096 slots"]  # fmt: skip
    looking = section("A lane alone, both ends poll: a hand-off one way", heads, rows)
    parked = record["parked"]
    rows = [
        [what, f"{parked[f'{key}_us_p50']:.1f}", f"{parked[f'{key}_us_p99']:.1f}"]
        for what, key in (("a word, with a futex", "futex"), ("an order and its sample", "lane"))
    ]
    note = (
        f"The lane takes {parked['to_futex']:.2f} times what the futex does, median of {parked['runs']} runs."
    )
    title = "A lane alone, both ends block: there and back"
    return "\n\n".join(
        part for part in (looking, section(title, ["", "p50 us", "p99 us"], rows, note)) if part
    )


def _in_short(text: str) -> str:
    # The first line of a failure names the process, and the last line of its log the cause.
    first, *rest = text.strip().splitlines()
    return f"{first}: {rest[-1]}" if rest else first


def _names(scenarios: list[Record]) -> list[str]:
    return list(dict.fromkeys(name for one in scenarios for name in further(one)))


def _step(side: Record) -> str:
    # Older results have no waits.
    waited = f" ({side['wait_ms']:.2f} ms)" if "wait_ms" in side else ""
    return f"{side['step_ratio']:.3f}x{waited}"


def _rate(side: Record | None) -> str:
    return f"{_count(side)} ({side['cpu_s_per_10000']:.2f})" if side else "-"


def _count(side: Record | None) -> str:
    return f"{side['samples_per_s']:,.0f}" if side else "-"
