"""Evaluations of versions: the best file, an early end, the trained model."""

from __future__ import annotations

import math
from pathlib import Path

from ...rounds.events import Version
from ..options import ServerOptions
from .model_file import write_model
from .trainer import Trainer

__all__ = ["Evaluation"]


class Evaluation:
    """Results of the job's `evaluate`.

    Args:
        options: Options of the server.
        best: Best result of a server before this one, and evaluations since then.
    """

    def __init__(self, options: ServerOptions, best: tuple[float | None, int] = (None, 0)) -> None:
        self._options = options
        self.best = best
        self.last: float | None = None
        self.last_version: Version | None = None

    def is_due(self, number: int) -> bool:
        """Return whether a version is evaluated."""
        every = self._options.evaluate_every
        return every > 0 and number % every == 0

    @property
    def is_enough(self) -> bool:
        """Whether the last evaluations were no better than one before them."""
        return (
            self._options.stop_after_evaluations is not None
            and self.best[1] >= self._options.stop_after_evaluations
        )

    def evaluate(self, version: Version, trainer: Trainer) -> str | None:
        """Evaluate, and write the best file if there is no better result; return what came of it, for people."""
        value = trainer.evaluate()
        if value is None:
            return None
        self.last, self.last_version = value, version
        if not self._is_better(value):
            self.best = (self.best[0], self.best[1] + 1)
            return f"version {version}: {value:.6g}; the best so far is {self.best[0]:.6g}"
        self.best = (value, 0)
        write_model(self.best_file, trainer.module)
        return f"version {version}: {value:.6g}, the best so far, in {self.best_file}"

    def finish(self, version: Version, trainer: Trainer) -> str:
        """Write the trained model; return what was done, for people.

        Raises:
            OSError: it cannot be written.
        """
        write_model(self._options.output, trainer.module)
        text = f"the weights of version {version} are in {self._options.output}"
        if self.last_version != version:
            value = trainer.evaluate()
            if value is not None:
                self.last, self.last_version = value, version
        return text if self.last is None else f"{text}; they evaluate to {self.last:.6g}"

    @property
    def best_file(self) -> Path:
        """Where the weights with the best result are."""
        output = self._options.output
        return output.with_name(f"{output.stem}.best{output.suffix}")

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        best = self.best[0]
        if best is None:
            return True
        return value < best if self._options.lower_is_better else value > best
