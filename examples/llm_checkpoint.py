"""The checkpoint of distill_llm.py: finished layers, the one in training, and the measurements."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn


@dataclass
class LayerResult:
    """Measurements of the training of one layer on this rank."""

    error_before: float  # ‖student - teacher‖ / ‖teacher‖ on held-out text, all ranks
    error_after: float | None = None
    teacher_rate: float = 0.0  # samples/s that all teachers made for this rank while it did not train
    samples: int = 0
    waiting_s: float = 0.0
    training_s: float = 0.0
    losses: list[float] = field(default_factory=list)  # one for each batch

    def add(self, samples: int, waiting_s: float, training_s: float) -> None:
        """Count one batch."""
        self.samples += samples
        self.waiting_s += waiting_s
        self.training_s += training_s

    @property
    def starvation(self) -> float:
        """The share of the time that was spent waiting for data."""
        return self.waiting_s / (self.waiting_s + self.training_s)

    @property
    def samples_per_s(self) -> float:
        """Samples trained on, per second of waiting and training."""
        return self.samples / (self.waiting_s + self.training_s)

    @property
    def student_rate(self) -> float:
        """Samples per second that the student would take if it never waited."""
        return self.samples / self.training_s

    @property
    def could_keep_up(self) -> bool:
        """Whether the teachers made samples faster than the student takes them."""
        return self.teacher_rate >= self.student_rate


class Checkpoint:
    """The progress of training; kept in a file, which is replaced atomically.

    Args:
        path: of the file; None keeps nothing (every rank but the first).
        settings: of the run, in plain values; a checkpoint of other settings is not resumed.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.layer = 0
        self.batches_done = 0
        self.results: list[LayerResult] = []
        self.finished: list[dict[str, Any]] = []
        self._in_training: dict[str, Any] = {}

    def load(self, path: Path) -> None:
        """Go on from a file.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it belongs to a run with other settings.
        """
        if not path.exists():
            raise FileNotFoundError(f"no checkpoint at {path}: start without resume=true")
        state = torch.load(path, map_location="cpu", weights_only=True)
        changed = [key for key, value in self.settings.items() if state["settings"].get(key) != value]
        if changed:
            raise ValueError(
                f"{path} was made with other settings of {', '.join(changed)}: use those, or start anew"
            )
        self.layer, self.batches_done = state["layer"], state["batches_done"]
        self.results = [LayerResult(**result) for result in state["results"]]
        self.finished, self._in_training = state["finished"], state["in_training"]

    def restore(self, layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give a layer and its optimizer the state in which they were saved."""
        layer.load_state_dict(self._in_training["layer"])
        optimizer.load_state_dict(self._in_training["optimizer"])

    def save(self, batches_done: int, layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Keep the layer in training."""
        self.batches_done = batches_done
        self._in_training = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}
        self._write()

    def finish_layer(self, layer: nn.Module) -> None:
        """Keep a layer that is trained, and go to the next one."""
        self.finished.append(layer.state_dict())
        self.layer, self.batches_done, self._in_training = self.layer + 1, 0, {}
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "settings": self.settings,
            "layer": self.layer,
            "batches_done": self.batches_done,
            "results": [asdict(result) for result in self.results],
            "finished": self.finished,
            "in_training": self._in_training,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)
