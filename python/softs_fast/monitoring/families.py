"""Families of metrics in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Family", "Field", "Labels", "families_of_fields", "metrics_text", "unlabelled"]

Labels = dict[str, str]
#: Name without the prefix, type, help, values.
Family = tuple[str, str, str, Iterable[tuple[Labels, float]]]
#: A family that shows a field of objects: its name, its help, the name of the field, and the factor to its unit.
Field = tuple[str, str, str, float]


def metrics_text(families: Iterable[Family]) -> str:
    """Write families as text; every name begins with ``softs_fast_``."""
    return "".join(line + "\n" for family in families for line in _lines(family))


def unlabelled(value: float) -> list[tuple[Labels, float]]:
    """Return the values of a family that has one, without labels."""
    return [({}, value)]


def families_of_fields(fields: Iterable[Field], found: Sequence[tuple[Labels, object]]) -> Iterator[Family]:
    """Yield a family for each field of objects that have labels."""
    for name, text, field, factor in fields:
        kind = "counter" if name.endswith("_total") else "gauge"
        yield name, kind, text, [(labels, getattr(one, field) * factor) for labels, one in found]


def _lines(family: Family) -> Iterator[str]:
    name, kind, text, values = family
    yield f"# HELP softs_fast_{name} {text}"
    yield f"# TYPE softs_fast_{name} {kind}"
    for labels, value in values:
        inner = ",".join(f'{key}="{_escaped(content)}"' for key, content in labels.items())
        yield f"softs_fast_{name}{f'{{{inner}}}' if inner else ''} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
