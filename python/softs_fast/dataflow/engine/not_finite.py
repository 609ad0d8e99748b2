"""Counts of NaN and infinities that training functions read or report, and when to say so. Pure."""

from __future__ import annotations

from .results import CallResult

__all__ = ["NotFinite"]


class NotFinite:
    """Counts what is not finite in the calls of a flow.

    Attributes:
        counts: Rows by "column -> function", where a training function has read them, and calls by "function -> number",
            where a function has reported one.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        # Counts from which on the next word is due.
        self._due: dict[str, int] = {}

    def observe(self, result: CallResult) -> list[str]:
        """Count what a call has read and reported; return what to say: of each count the first, and when it has doubled.

        Args:
            result: A call that is done.
        """
        said = []
        for name, n in result.all_not_finite.items():
            self.counts[name] = total = self.counts.get(name, 0) + n
            if total < self._due.get(name, 1):
                continue
            self._due[name] = 2 * total
            if name.startswith(f"{result.function} -> "):
                number = name.removeprefix(f"{result.function} -> ")
                what = f"{result.function} has reported {number!r} as NaN or infinite in {total} calls"
            else:
                column = name.removesuffix(f" -> {result.function}")
                what = f"{result.function} has trained with {total} rows that have a NaN or an infinity in column {column!r}"
            said.append(f"{what}, the last in step {result.step + 1}")
        return said
