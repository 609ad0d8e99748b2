"""Which columns a function reads and writes: "prompt, logp as old_logp -> seq"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["Columns"]

_COLUMN = re.compile(r"([A-Za-z_]\w*)(?:\s+as\s+([A-Za-z_]\w*))?")


@dataclass(frozen=True)
class Columns:
    """Columns of the flow, and their names inside the function.

    Attributes:
        inputs: Columns of the flow that are read, in the order of the text.
        outputs: Columns of the flow that are written.
        input_remap: Names that the function has for inputs, by column; only where they differ.
        output_remap: Columns of outputs, by the names that the function has for them; only where they differ.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_remap: dict[str, str]
    output_remap: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Columns:
        """Read "in -> out", or "in" alone. `a as b` goes from left to right: what was a is b behind the function's edge.

        Raises:
            ConfigError: a name is no identifier or occurs twice, there is more than one arrow, or no input.
        """
        parts = text.split("->")
        if len(parts) > 2:
            raise ConfigError(f"columns {text!r} have {len(parts) - 1} arrows; need at most 1")
        read = _pairs(parts[0], text)
        written = _pairs(parts[1], text) if len(parts) == 2 else []
        if not read:
            raise ConfigError(f"columns {text!r} have no input; rows begin with the columns of the source")
        for names in (
            [a for a, _ in read],
            [b for _, b in read],
            [a for a, _ in written],
            [b for _, b in written],
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"columns {text!r} name {', '.join(twice)} twice on one side")
        return cls(
            tuple(column for column, _ in read),
            tuple(column for _, column in written),
            {column: inside for column, inside in read if column != inside},
            {inside: column for inside, column in written if column != inside},
        )


def _pairs(part: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for word in part.split(","):
        if not word.strip():
            continue
        found = _COLUMN.fullmatch(word.strip())
        if found is None:
            raise ConfigError(f"columns {text!r}: {word.strip()!r} is not a name, or two names with `as`")
        pairs.append((found[1], found[2] or found[1]))
    return pairs
