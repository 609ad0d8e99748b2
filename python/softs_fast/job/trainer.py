"""A job in the loop of a Trainer of transformers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from transformers import TrainerCallback

from ..errors import ConfigError
from .checkpoint_files import read_facts, write_facts
from .checkpoint_folder import CheckpointFolder
from .checkpoints import Checkpoints
from .contract import check_ranks, contract_of
from .feed import Feed
from .job import check_launched, checked_position
from .live_data import LiveData
from .peers import Peers
from .saver import tell_unwritten
from .step import random_of

__all__ = ["JobCallback"]


class JobCallback(TrainerCallback):
    """A job that gives a Trainer its batches, and seals the checkpoints that the Trainer writes.

    The ranks are those of torch.distributed, or this process alone. All of them begin with the last checkpoint that was
    sealed, with the samples that follow on it. The Trainer writes a checkpoint into its `output_dir` as it always does; when
    all ranks have, the job adds what it knows and a manifest, and moves the folder to those of `checkpoints`.

        with JobCallback("digits", data, checkpoints=sf.Checkpoints("ckpt", every=50)) as job:
            arguments = TrainingArguments("output", max_steps=400, gradient_accumulation_steps=job.n_micro_batches)
            trainer = LiveTrainer(model=model, args=arguments, callbacks=[job])
            trainer.train(resume_from_checkpoint=job.resume_path)

    Args:
        name: Name of the job.
        data: Samples of the job.
        checkpoints: Where checkpoints are sealed; on the file system of the Trainer's `output_dir`.
        seed: Seed of torch's random numbers, which begin anew with each step; below 2**64.

    Attributes:
        resume_path: Folder of the checkpoint with which the Trainer is to begin; None for the first step.

    Raises:
        ConfigError: An argument is wrong; or a launcher has started this process as one of several, and there is no process
            group of torch.distributed.
    """

    def __init__(self, name: str, data: LiveData, *, checkpoints: Checkpoints, seed: int = 0) -> None:
        if checkpoints is None:
            raise ConfigError("checkpoints must be sf.Checkpoints(folder, every=...), got None")
        self._position = checked_position(name, data, checkpoints, seed)
        self._name, self._data, self._checkpoints = name, data, checkpoints
        self.resume_path: str | None = None
        self._begin_random = random_of(torch.device("cpu"))
        self._feed = Feed()
        # Steps of which batches were handed out, and at the end of the training.
        self._n_begun, self._n_steps = 0, 0
        # Step of the last checkpoint that was sealed.
        self._sealed = 0
        self._running: ExitStack | None = None

    def __enter__(self) -> Self:
        """Find the newest checkpoint; a call of all ranks.

        Raises:
            ConfigError: The checkpoint is of another job or other data; the folder cannot be read or written, or another
                process is in it; ranks differ in what they train, or would have unequal shares; or it was entered before.
            DamagedError: There are checkpoints, and none is whole.
        """
        if self._running is not None:
            raise ConfigError("this job has run: make another JobCallback")
        check_launched()
        with ExitStack() as running:
            peers = self._peers = Peers.of_process()
            running.callback(peers.close)
            position = self._position
            contract = contract_of(position, self._data.config, None)
            contract["checkpoints every"] = str(self._checkpoints.every)
            check_ranks(peers, contract, position.ledger.n_micro_batches)
            self._folder = running.enter_context(
                CheckpointFolder(
                    self._checkpoints, self._name, position, "transformers", peers, is_alone=True
                )
            )
            found = self._folder.load(self._take)
            self.resume_path = None if found is None else str(found)
            self._sealed = position.committed
            self._batches = self._data.batches()
            running.callback(self._batches.close)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the samples and the folder."""
        assert self._running is not None
        self._running.__exit__(kind, error, trace)

    def _take(self, path: Path) -> None:
        facts = read_facts(path)
        self._position.load_state_dict({**facts, "committed": facts["step"]})

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches of a step on each rank: the Trainer's `gradient_accumulation_steps`.

        Raises:
            ConfigError: The job has not begun.
        """
        if self._running is None:
            raise ConfigError("the job has not begun: use it in a block `with JobCallback(...) as job:`")
        return self._position.ledger.n_micro_batches // self._peers.size

    @property
    def loader(self) -> _Loader:
        """The batches, for `get_train_dataloader`; each `{name: dtype [micro_batch_size, *shape]}`."""
        return _Loader(self)

    def batches(self) -> Iterator[Any]:
        """Yield this rank's micro-batches from the present step on, to the end of the last one.

        Raises:
            GeneratorFailed: A sample cannot be made.
        """
        position, batches = self._position, self._batches
        feed = self._feed = Feed()
        self._n_begun = position.committed
        while self._n_begun < self._n_steps:
            step = self._n_begun
            self._n_begun += 1
            product = position.ledger.product_of(step)
            if product != batches.product:
                batches.switch(product)
            aim = feed.begin(position.ledger, step, self._peers.rank, self._peers.size)
            if aim is not None:
                batches.aim(*aim)
            while (due := feed.due) is not None:
                batch = batches.take(lambda: False)
                feed.took()
                self._begin_random(position.seed_of(step, due.place))
                yield batch
            feed.committed()

    # --- Events ---

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have a resumed run begin with the first batch of the loader."""
        args.ignore_data_skip = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that the Trainer makes the steps of the job.

        Raises:
            ConfigError: It does not; the text names the argument.
        """
        for name, have, expected in (
            ("gradient_accumulation_steps", args.gradient_accumulation_steps, self.n_micro_batches),
            ("world_size", args.world_size, self._peers.size),
            ("save_only_model", args.save_only_model, False),
            # Its folder has been moved by then.
            ("load_best_model_at_end", args.load_best_model_at_end, False),
            ("ignore_data_skip", args.ignore_data_skip, True),
        ):
            if have != expected:
                raise ConfigError(f"the Trainer of a job must have {name}={expected}, got {have}")
        if args.save_strategy == "best":
            raise ConfigError(
                'a Trainer with save_strategy="best" leaves out checkpoints of the job that are due: use save_strategy="no"'
            )
        if state.global_step != self._position.committed:
            raise ConfigError(
                f"the Trainer begins at step {state.global_step}, and the job at {self._position.committed}: call "
                "trainer.train(resume_from_checkpoint=job.resume_path)"
            )
        own = os.path.abspath(args.output_dir)
        if (first := self._peers.of_first(own)) != own:
            raise ConfigError(
                f"output_dir is {own} on this rank, and {first} on rank 0, so a checkpoint would lack files of this rank: give "
                "all ranks one folder"
            )
        os.makedirs(own, exist_ok=True)
        if os.stat(args.output_dir).st_dev != os.stat(self._checkpoints.path).st_dev:
            raise ConfigError(
                f"output_dir={args.output_dir!r} and the folder of checkpoints, {self._checkpoints.path}, are on two file "
                "systems, so a checkpoint cannot be moved: choose folders of one"
            )
        self._n_steps, self._begin_random = state.max_steps, random_of(args.device)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step, and have the Trainer write a checkpoint if one is due.

        Raises:
            ConfigError: The step has not had all of its micro-batches, or others.
        """
        if self._n_begun != state.global_step or self._feed.n_due:
            raise ConfigError(
                f"step {state.global_step} of the Trainer ends in step {self._n_begun} of the job, with {self._feed.n_due} "
                "micro-batches left: let get_train_dataloader return job.loader as it is"
            )
        self._position.applied()
        if state.global_step % self._checkpoints.every == 0:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal the checkpoint that the ranks have written, if one is due; a failure is logged."""
        step = state.global_step
        written = Path(args.output_dir, f"checkpoint-{step}")

        def seal() -> None:
            if self._peers.rank == 0:
                facts = self._folder.facts(self._peers.size)
                self._folder.make_room(facts)
                write_facts(written, facts)
                self._folder.seal(written, step)

        # At the end of an epoch a Trainer may save a step another time.
        if step % self._checkpoints.every == 0 and step != self._sealed:
            try:
                # Parts of other ranks first.
                self._peers.largest(0)
                self._peers.together(seal)
                self._sealed = step
            except Exception as error:
                tell_unwritten(step, error)


class _Loader:
    """What a Trainer iterates over; it has no length, so that the Trainer goes by `max_steps`."""

    def __init__(self, job: JobCallback) -> None:
        self._job = job

    def __iter__(self) -> Iterator[Any]:
        return self._job.batches()
