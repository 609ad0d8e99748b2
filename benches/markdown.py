"""Tables in Markdown, and the values that they take from a results file."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def section(title: str, heads: list[str], rows: list[list[str]], note: str = "") -> str:
    """A heading, a table, and a line below it; nothing without rows."""
    if not rows:
        return ""
    return f"## {title}\n\n{table(heads, rows)}" + (f"\n\n{note}" if note else "")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table with text in the first column and numbers in the others."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def measured(result: Record, key: str) -> list[Record]:
    """Scenarios that did not fail and have this measurement."""
    done = [scenario for scenario in result["scenarios"] if "error" not in scenario]
    return [scenario for scenario in done if key in medians(scenario)[0]]


def medians(scenario: Record) -> tuple[Record, Record]:
    """The medians of the baseline and of the candidate."""
    theirs, ours = (side["median"] for side in list(scenario["sides"].values())[:2])
    return theirs, ours


def further(scenario: Record) -> dict[str, Record]:
    """The medians of the sides beyond the first two, by their name."""
    return {name: side["median"] for name, side in list(scenario["sides"].items())[2:]}
