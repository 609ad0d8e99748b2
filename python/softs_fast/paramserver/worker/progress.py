"""What a worker shows: one line that changes, on a terminal; a line now and then, elsewhere; a summary at the end."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .optimizer import RemoteOptimizer

__all__ = ["Progress", "bar", "size"]

_SHOWN_EVERY_S, _PRINTED_EVERY_S = 0.1, 10.0
_WIDTH = 24


def bar(done: int, total: int, width: int = _WIDTH) -> str:
    """Return a bar of a width in characters."""
    filled = width * min(done, total) // max(total, 1)
    return "[" + "#" * filled + "." * (width - filled) + "]"


def size(n: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} GB"


class Progress:
    """The lines of one worker.

    Args:
        out: Stream of the lines; standard error by default.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._optimizer: RemoteOptimizer | None = None
        self._begin = time.monotonic()
        self._shown = -math.inf
        self._length = 0

    def joined(self, optimizer: RemoteOptimizer) -> None:
        """The worker has joined."""
        self._optimizer = optimizer
        joined = optimizer.joined
        self._print(
            f"joined as {joined.worker_id}, rank {joined.rank} of {joined.world_size}; {joined.config.mode}, "
            f"batches of {joined.config.batch_size}, {optimizer.push_codec} pushes, version "
            f"{joined.version} of {joined.config.rounds}"
        )

    def doing(self, what: str) -> None:
        """The worker does something; shown on a terminal, at most every tenth of a second."""
        now = time.monotonic()
        if self._is_terminal and now - self._shown >= _SHOWN_EVERY_S:
            self._shown = now
            text = self.line(what)[:118]
            self._out.write("\r" + text + " " * max(0, self._length - len(text)))
            self._out.flush()
            self._length = len(text)

    def pushed(self) -> None:
        """A push has ended; printed every ten seconds where there is no terminal."""
        now = time.monotonic()
        if self._is_terminal:
            self.doing("")
        elif now - self._shown >= _PRINTED_EVERY_S:
            self._shown = now
            self._print(self.line(""))

    def line(self, what: str) -> str:
        """Return the present state in one line."""
        optimizer = self._optimizer
        if optimizer is None:
            return what
        rounds, (_, version) = optimizer.config.rounds, optimizer.version
        loss = optimizer.counts.loss
        parts = [
            f"{bar(version, rounds)} {version}/{rounds}",
            "" if math.isnan(loss) else f"loss {loss:.4g}",
            f"{size(optimizer.traffic.sent_bytes)} up, {size(optimizer.traffic.received_bytes)} down",
            optimizer.traffic.trouble or what,
        ]
        return "  ".join(part for part in parts if part)

    def summary(self) -> str:
        """Return what the worker has done, in a few lines."""
        optimizer = self._optimizer
        if optimizer is None:
            return "the worker has not joined"
        counts, traffic, over = optimizer.counts, optimizer.traffic, optimizer.summary
        lines = [
            f"{counts.counted} pushes of {counts.samples} samples counted, {counts.stale} stale, in "
            f"{time.monotonic() - self._begin:.1f} s",
            f"{size(traffic.sent_bytes)} sent, {size(traffic.received_bytes)} received, {traffic.failures} failed attempts, "
            f"{traffic.joins} joins",
        ]
        if over is not None:
            metric = "" if over.metric is None else f", metric {over.metric:.4g}"
            lines.append(f"the run is over at version {over.version}{metric}: {over.message}")
        return "\n".join(lines)

    def close(self) -> None:
        """Print the summary."""
        self._print(self.summary())

    def _print(self, text: str) -> None:
        self._out.write(("\n" if self._length else "") + text + "\n")
        self._out.flush()
        self._length = 0
