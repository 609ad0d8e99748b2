"""Batches made of finished slots that the caller took from a client itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, KeysView

import torch

from ..configs import BatchConfig
from ..market import Client
from .readers.copying import sample_bytes

__all__ = ["Batch", "make_collate_fn"]


class Batch:
    """Stacked tensors of several slots, dtype [n_slots, *shape] each.

    Args:
        tensors: the stacked tensors by name.
        slot_ids: the slots that they came from.
        client: gets the slots back in `release`; None if they are released already.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        slot_ids: list[int] | None = None,
        client: Client | None = None,
    ) -> None:
        self.tensors = tensors
        self.slot_ids = slot_ids or []
        self._client = client

    def __getitem__(self, key: str) -> torch.Tensor:
        """Return one tensor; KeyError if there is none of this name."""
        return self.tensors[key]

    def __contains__(self, key: str) -> bool:
        """Return whether there is a tensor of this name."""
        return key in self.tensors

    def keys(self) -> KeysView[str]:
        """Return the names of the tensors."""
        return self.tensors.keys()

    def release(self) -> None:
        """Give the slots back to the client; a second call does nothing."""
        client, self._client = self._client, None
        if client is not None:
            for slot_id in self.slot_ids:
                client.release_slot(slot_id)

    def __del__(self) -> None:
        """Release the slots if the user did not; the client may be closed by now."""
        with contextlib.suppress(Exception):
            self.release()


def make_collate_fn(
    client: Client, batch_config: BatchConfig, auto_release: bool = True
) -> Callable[[list[int]], Batch]:
    """Return a function that turns a list of finished slots into a `Batch`.

    Args:
        client: The owner of the slots.
        batch_config: Config of the tensors that one slot holds.
        auto_release: Whether the slots are given back as soon as they are copied, also if decoding fails; otherwise
            the batch keeps them until `Batch.release`, or until it is garbage.

    Raises (the returned function):
        ConfigError: there are no slots, or a slot does not hold `batch_config.nbytes()` bytes.
        WireError: a slot is not what a codec of `batch_config` writes, or has a length that no ragged tensor has.
    """
    read = sample_bytes(batch_config, client.medium)

    def collate_fn(slot_ids: list[int]) -> Batch:
        try:
            tensors = batch_config.decode_batch([read(slot_id) for slot_id in slot_ids])
        finally:
            if auto_release:
                for slot_id in slot_ids:
                    client.release_slot(slot_id)
        return Batch(tensors, slot_ids, None if auto_release else client)

    return collate_fn
