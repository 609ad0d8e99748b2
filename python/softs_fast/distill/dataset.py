"""The endless dataset of the newest model's samples, and its DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..configs import BatchConfig
from ..errors import ConfigError
from ..loader import (
    EndlessDataLoader,
    EndlessDataset,
    StreamOptions,
    check_at_least,
    checked_positions,
    whole_number,
)
from ..market import Client, ShmMedium, default_endpoint
from ..market import Medium as MarketMedium
from ..mediums import Medium, market_medium
from ..record import RecordOptions
from .model import check_rank
from .orders import StudentOrders
from .shared_generation import GenerationProduct

__all__ = ["DistillDataLoader", "DistillIterableDataset"]


class DistillIterableDataset(EndlessDataset):
    """Endless dataset of samples of the newest model, decoded to `{name: tensor}`.

    Each process that iterates, such as a DataLoader worker, has slots of its own. An iterator follows the model: after
    a switch it yields nothing of an earlier one. What a DataLoader of torch has fetched ahead it cannot take back; a
    `DistillDataLoader` does that.

    Args:
        student_rank: Rank of the student that orders the samples.
        generation_value: `StudentClient.generation_value`; anything that has the generation in `value` will do.
        slot_count: Samples on order or finished, per process.
        batch_config: Layout of a sample.
        frontend_endpoint: The broker's frontend.
        max_retries: Orders that may fail in a row, for at least a second, before iteration raises `GeneratorFailed`.
            Before a first sample has come, one order that fails is enough, after 0.5 s.
        retry_delay: Seconds, the shortest time between two requests that returned at once with nothing.
        medium: Makes the memory for samples, as `medium(slot_count, slot_stride)`, in each process that iterates; one
            of `softs_fast.mediums` or your own. Default: one of medium_cls.
        medium_cls: Class of the memory that is made otherwise.
        request_timeout: Seconds without a sample after which iteration raises, whatever it waits for: a broker, a
            supplier, or slots that the user holds. None waits for ever. Every 10 s the cause of the wait is logged.
        zero_copy: Tensors lie on the slots, see `SoftIterableDataset`.
        ordered: Samples of each model come strictly by their sequence numbers, see `SoftIterableDataset`. Each use of
            `set_model` begins at 0.
        prefetch: Samples that are ordered ahead at most; default: all slots.
        debug: Overwrite slots with 0xFF when they are released, so that code that reads one later notices.
        rank: Rank among the processes that share the numbers of samples, see `SoftIterableDataset`.
        world_size: Number of these processes; given with `rank` only.

    Raises:
        ConfigError: a number is out of range, `generation_value` has no `value`, or `zero_copy` is impossible.
    """

    def __init__(
        self,
        student_rank: int,
        generation_value: Any,
        slot_count: int,
        batch_config: BatchConfig,
        frontend_endpoint: str | None = None,
        max_retries: int = 10,
        retry_delay: float = 0.01,
        *,
        medium: Callable[[int, int], Medium] | None = None,
        medium_cls: Callable[..., MarketMedium] = ShmMedium,
        request_timeout: float | None = None,
        zero_copy: bool = False,
        ordered: bool = False,
        prefetch: int | None = None,
        debug: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        whole_number("slot_count", slot_count, 1)
        check_at_least("max_retries", max_retries, 1)
        if medium is not None and zero_copy:
            raise ConfigError("zero_copy needs slots that can be mapped: give medium_cls instead of medium")
        self.student_rank = check_rank(student_rank)
        self.generation_value = generation_value
        self.slot_count = slot_count
        self.max_retries = max_retries
        self.medium = medium
        product = GenerationProduct(student_rank, generation_value)
        self._product = product
        super().__init__(
            product,
            frontend_endpoint or default_endpoint("frontend"),
            batch_config,
            medium_cls,
            StreamOptions(
                num_slots=slot_count,
                retry_delay=retry_delay,
                request_timeout=request_timeout,
                zero_copy=zero_copy,
                ordered=ordered,
                prefetch=prefetch,
                debug=debug,
                rank=rank,
                world_size=world_size,
                max_failures=max_retries,
                first_wait_ms=1,
            ),
        )

    @property
    def generation(self) -> int:
        """Of which model samples are wanted now; 0: there is none yet."""
        return int(self.generation_value.value)

    def state_dict(self) -> dict[str, Any]:
        """Return how many samples of the newest model this process has handed out, for `load_state_dict`.

        Returns:
            As `SoftIterableDataset.state_dict`; the product is a digest of model_id and model_cfg, since another run
            counts its generations anew.
        """
        state, model = super().state_dict(), self._product.model()
        if model is not None:
            product, digest = model
            position = state["positions"].get(product)
            state["positions"] = {} if position is None else {digest.hex(): position}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let iterators that this process makes from now on go on with the newest model where another one stopped.

        Set the model first, or wait until it is announced. A later generation begins at 0, also of the same model.

        Args:
            state: State that `state_dict` returned.

        Raises:
            ConfigError: as for `SoftIterableDataset.load_state_dict`; or the state is of another model, or
                `generation_value` is no `StudentClient.generation_value`.
        """
        positions, model = checked_positions(state), self._product.model()
        if model is None:
            raise ConfigError(
                f"generation_value is of type {type(self.generation_value).__name__} and does not name the model, so "
                f"there is no telling whether the state is of the same one; give StudentClient.generation_value"
            )
        product, digest = model
        others = positions.keys() - {digest.hex()}
        if others:
            raise ConfigError(
                f"the state is of another model than generation {self.generation}: its digest of model_id and model_cfg "
                f"is {min(others)}, here it is {digest.hex()}; set that model before the state is loaded"
            )
        super().load_state_dict(
            {**state, "positions": dict(zip([product], positions.values(), strict=False))}
        )

    def _needs_watcher(self) -> bool:
        return self._product.can_wake

    def _make_client(self, **arguments: Any) -> Client:
        make = self.medium
        if make is not None:

            def made(*, slot_size: int, num_slots: int, **_: Any) -> MarketMedium:
                return market_medium(make(num_slots, slot_size), num_slots, slot_size)

            arguments["medium_cls"] = made
        return StudentOrders(**arguments)


class DistillDataLoader(EndlessDataLoader):
    """DataLoader over a `DistillIterableDataset`: batches of the newest model only.

        loader = DistillDataLoader(DistillIterableDataset(0, client.generation_value, 64, config), batch_size=32)
        for batch in loader:
            train(batch["x"], batch["y"])

    With the default `collate_fn` no process is started; `num_workers=N` then means N times the slots and N native
    threads, see `EndlessDataLoader`. After a switch, no batch of an earlier model is handed out, not even one that was
    fetched ahead, and none with samples of two models. With an ordered dataset, the batches of each model come in the
    order of the stream, for any number of workers.

    Args:
        dataset: Dataset that the samples come from.
        device: Device on which batches are handed out, see `EndlessDataLoader`.
        steps_per_epoch: Batches after which an iterator ends, see `EndlessDataLoader`.
        record: Folder or `RecordOptions` of a recording, see `EndlessDataLoader`. It is of one model: after `set_model` iteration
            raises ConfigError.
        **dataloader_kwargs: Arguments of DataLoader. With `zero_copy` there must be slots for two batches.

    Raises:
        ConfigError: `dataset` is something else, or has too few slots; or as for `EndlessDataLoader`.
    """

    def __init__(
        self,
        dataset: DistillIterableDataset,
        *,
        device: torch.device | str | int | None = None,
        steps_per_epoch: int | None = None,
        record: str | os.PathLike[str] | RecordOptions | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        if not isinstance(dataset, DistillIterableDataset):
            raise ConfigError(f"dataset must be a DistillIterableDataset, got {type(dataset).__name__}")
        super().__init__(
            dataset, device=device, steps_per_epoch=steps_per_epoch, record=record, **dataloader_kwargs
        )
