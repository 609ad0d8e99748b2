"""The place in a stream, in the checkpoints of a Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import TrainerCallback

from ..errors import ConfigError

__all__ = ["StreamCallback"]


class _Loader(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> None: ...


class StreamCallback(TrainerCallback):
    """Saves the place in a loader's stream with each checkpoint, and loads it when a run resumes.

        trainer = LiveTrainer(loader, model=model, args=arguments, callbacks=[StreamCallback(loader)])
        trainer.train(resume_from_checkpoint=True)

    Each rank has a file of its own. The Trainer skips no batches then (`ignore_data_skip`): a live stream has none to skip.

    Args:
        loader: A `SoftDataLoader` or `DistillDataLoader`. For a resumed run it must not have been iterated yet; of a
            `DistillDataLoader`, the model must be set before `train`.
    """

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have a resumed run begin where the loader is."""
        args.ignore_data_skip = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the place beside the weights."""
        file = _file(args, state)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self._loader.state_dict(), file)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Load the place of the checkpoint with which the run begins, if it begins with one.

        Raises:
            ConfigError: the checkpoint has no place for this rank.
        """
        if state.global_step == 0:
            return
        file = _file(args, state)
        if not file.exists():
            raise ConfigError(
                f"the run resumes at step {state.global_step}, and {file} is missing; resume from a checkpoint in output_dir "
                "that was saved with this callback and as many ranks, or without this callback"
            )
        self._loader.load_state_dict(torch.load(file))


def _file(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}", f"softs_stream_{args.process_index}.pt")
