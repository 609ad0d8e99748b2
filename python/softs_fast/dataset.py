"""The student's side in PyTorch: an endless dataset of samples, its DataLoader, and batches of slots."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import multiprocessing.util
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, KeysView
from typing import Any, Concatenate, ParamSpec

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .batches import Row, RowReader, SampleReader, collate_rows, has_rows
from .configs import BatchConfig
from .errors import ConfigError
from .market import Client, Medium

__all__ = ["Batch", "SoftDataLoader", "SoftIterableDataset", "make_collate_fn"]

P = ParamSpec("P")


class Batch:
    """Stacked tensors of several slots, dtype [n_slots, *shape] each.

    Args:
        tensors: the stacked tensors by name.
        slot_ids: the slots that they came from.
        client: who gets the slots back in `release`; None if they went back already.
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
        """Give the slots back if nobody did; the client may be closed by now."""
        with contextlib.suppress(Exception):
            self.release()


def make_collate_fn(
    client: Client, batch_config: BatchConfig, auto_release: bool = True
) -> Callable[[list[int]], Batch]:
    """Return a function that turns a list of finished slots into a `Batch`.

    Args:
        client: the owner of the slots.
        batch_config: what one slot holds.
        auto_release: give the slots back as soon as they are copied, also if decoding fails; otherwise the
            batch keeps them until `Batch.release`, or until it is garbage.

    Raises (the returned function):
        ConfigError: there are no slots, or a slot does not hold `batch_config.nbytes()` bytes.
    """

    def collate_fn(slot_ids: list[int]) -> Batch:
        try:
            tensors = batch_config.decode_batch([client.medium.read(slot_id) for slot_id in slot_ids])
        finally:
            if auto_release:
                for slot_id in slot_ids:
                    client.release_slot(slot_id)
        return Batch(tensors, slot_ids, None if auto_release else client)

    return collate_fn


def _accepts_0_1_0(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[Concatenate[Any, P], None]:
    """Let a constructor with the arguments of softs 0.1.2 also take those of 0.1.0.

    0.1.0 had `max_retries` (a whole number, 10 by default) where 0.1.2 has `retry_delay` (seconds), and
    `retry_delay` after it, where 0.1.2 has `request_timeout`. It never gave up, so `max_retries` without
    `request_timeout` means no timeout.
    """

    @functools.wraps(init)
    def accept(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if len(args) in (6, 7) and type(args[5]) is int and args[5] >= 1:
            by_place = dict(zip(("max_retries", "retry_delay"), args[5:], strict=False))
            twice = by_place.keys() & kwargs.keys()
            if twice:
                raise TypeError(f"given both by position and by name: {', '.join(sorted(twice))}")
            args, kwargs = args[:5], {**kwargs, **by_place}
        if kwargs.get("max_retries") is not None and len(args) < 7:
            kwargs.setdefault("request_timeout", None)
        init(self, *args, **kwargs)

    return accept


class SoftIterableDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Endless dataset of samples, decoded to `{name: tensor}`; each tensor has memory of its own.

    The client is opened by the process that iterates, so each DataLoader worker has its own, with `num_slots`
    slots.

    Args:
        model_id: product to order; at most 256 bytes of UTF-8. `set_model` changes it for all workers.
        endpoint: frontend of the broker.
        batch_config: what one sample holds.
        medium_cls: how samples get here.
        num_slots: samples on order or finished, per worker.
        retry_delay: seconds, the shortest time between two requests that got nothing.
        request_timeout: seconds without a sample after which iteration raises; None waits for ever.
        max_retries: softs 0.1.0's argument. It never gave up: with `max_retries` alone, `request_timeout` is
            None. A whole number >= 1 as the sixth positional argument is taken for it, and a seventh for
            `retry_delay`.

    Raises:
        ConfigError: `model_id` is no string or too long, or a number is out of range.
    """

    @_accepts_0_1_0
    def __init__(
        self,
        model_id: str,
        endpoint: str,
        batch_config: BatchConfig,
        medium_cls: type[Medium],
        num_slots: int = 8,
        retry_delay: float = 0.01,
        request_timeout: float | None = 60.0,
        *,
        max_retries: int | None = None,
    ) -> None:
        self._client: Client | None = None
        self._client_pid: int | None = None
        self._rows_per_batch: int | None = None
        _check_at_least("num_slots", num_slots, 1)
        _check_at_least("retry_delay", retry_delay, 0)
        if request_timeout is not None:
            _check_at_least("request_timeout", request_timeout, 0)
        self._model = _SharedModelId(model_id)
        self.endpoint = endpoint
        self.num_slots = num_slots
        self.batch_config = batch_config
        self.medium_cls = medium_cls
        self.retry_delay = retry_delay
        self.request_timeout = request_timeout
        self.max_retries = max_retries

    @property
    def model_id(self) -> str:
        """The product that is ordered now."""
        return self._model.read()

    def set_model(self, model_id: str) -> None:
        """Order another product from now on, in every process that iterates over this dataset.

        No iterator yields a sample of the old product once it has seen the change, at the latest with the
        first sample that it takes from the broker afterwards. Batches that a DataLoader has fetched ahead are
        not taken back.

        Raises:
            ConfigError: `model_id` is no string or longer than 256 bytes.
        """
        self._model.write(model_id)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Return an iterator that yields samples for ever; each is `{name: dtype [*shape]}`.

        Raises (the iterator):
            SampleTimeout: no sample for `request_timeout` seconds; the subclass and the text name the cause.
            HelloError: the broker did not answer when the client was opened.
        """
        return self._iterate(self._rows_per_batch)

    def close(self) -> None:
        """Close this process's client, if there is one; the next iteration opens a new one."""
        client, self._client = self._client, None
        if client is not None and self._client_pid == os.getpid():
            client.close()

    def __del__(self) -> None:
        """Close the client if nobody did."""
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client behind: the process that unpickles opens its own."""
        return {**self.__dict__, "_client": None, "_client_pid": None}

    def _iterate(self, rows_per_batch: int | None) -> Iterator[Any]:
        try:
            yield from self._samples(rows_per_batch)
        except Exception:
            if get_worker_info() is not None:
                # torch ends a worker that has failed with a signal, which leaves no time to clean up.
                self.close()
            raise

    def _samples(self, rows_per_batch: int | None) -> Iterator[dict[str, torch.Tensor] | Row]:
        client = self._open_client()
        request_sample, release_slot = client.request_sample, client.release_slot
        reader: SampleReader | RowReader
        if rows_per_batch is not None and has_rows(self.batch_config):
            reader = RowReader(self.batch_config, client.medium, rows_per_batch)
        else:
            reader = SampleReader(self.batch_config, client.medium)
        read, take = reader.read, reader.take
        read_model_id, monotonic = self._model.read, time.monotonic
        current = read_model_id()
        asked_at = waiting_since = monotonic()
        wait_ms = first_wait_ms = self._wait_ms(0.0)
        while True:
            if (wanted := read_model_id()) != current:
                client.discard()
                current = wanted
                asked_at = waiting_since = monotonic()
                wait_ms = first_wait_ms
            slot_id = request_sample(current, timeout_ms=wait_ms)
            if slot_id is None:
                if _trainer_died():
                    return
                now = monotonic()
                waited_s = now - waiting_since
                if self.request_timeout is not None and waited_s >= self.request_timeout:
                    raise client.diagnose(current, waited_s)
                # The client waits by itself; this keeps one that comes back at once from spinning.
                time.sleep(max(0.0, self.retry_delay - (now - asked_at)))
                asked_at = monotonic()
                wait_ms = self._wait_ms(asked_at - waiting_since)
                continue
            try:
                read(slot_id)
            finally:
                release_slot(slot_id)
            if read_model_id() == current:
                # No local variable keeps the sample: its memory is free when those who got it let it go.
                yield take()
                asked_at = waiting_since = monotonic()
                wait_ms = first_wait_ms

    def _wait_ms(self, waited_s: float) -> int:
        """Return how long to wait for a sample before looking again whether the model id has changed."""
        if self.request_timeout is None:
            return _WAIT_MS
        return max(1, min(_WAIT_MS, math.ceil((self.request_timeout - waited_s) * 1000)))

    def _open_client(self) -> Client:
        if self._client is None or self._client_pid != os.getpid():
            client = Client(
                endpoint=self.endpoint,
                medium_cls=self.medium_cls,
                slot_size=self.batch_config.nbytes(),
                num_slots=self.num_slots,
            )
            try:
                client.hello()
            except BaseException:
                client.close()
                raise
            self._client, self._client_pid = client, os.getpid()
            if multiprocessing.parent_process() is not None:
                # A forked worker ends without running finalizers of what its parent's frames still hold.
                multiprocessing.util.Finalize(self, client.close, exitpriority=10)
        return self._client


class SoftDataLoader(DataLoader[dict[str, torch.Tensor]]):
    """DataLoader over a `SoftIterableDataset`, which is its attribute `soft_dataset`.

    Takes the arguments of `SoftIterableDataset` and then, by name, those of DataLoader:

        loader = SoftDataLoader("teacher", endpoints.frontend, config, ShmMedium, batch_size=32)
        for batch in loader:
            train(batch["x"], batch["y"])

    Raises:
        ConfigError: as for `SoftIterableDataset`.
    """

    @_accepts_0_1_0
    def __init__(
        self,
        /,
        model_id: str,
        endpoint: str,
        batch_config: BatchConfig,
        medium_cls: type[Medium],
        num_slots: int = 8,
        retry_delay: float = 0.01,
        request_timeout: float | None = 60.0,
        *,
        max_retries: int | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        self.soft_dataset = SoftIterableDataset(
            model_id,
            endpoint,
            batch_config,
            medium_cls,
            num_slots=num_slots,
            retry_delay=retry_delay,
            request_timeout=request_timeout,
            max_retries=max_retries,
        )
        if dataloader_kwargs.get("collate_fn") is not None or dataloader_kwargs.get("batch_size", 1) is None:
            super().__init__(self.soft_dataset, **dataloader_kwargs)
            self._rows_per_batch = None
        else:
            super().__init__(self.soft_dataset, **{**dataloader_kwargs, "collate_fn": collate_rows})
            self._rows_per_batch = self.batch_size

    def __iter__(self) -> Any:
        """Return an iterator over batches, each `{name: dtype [batch_size, *shape]}`.

        Raises (the iterator): as that of `SoftIterableDataset`.
        """
        # The iterator, or the workers that iterate, are made from the dataset now; nobody else gets rows.
        self.soft_dataset._rows_per_batch = self._rows_per_batch
        try:
            return super().__iter__()
        finally:
            self.soft_dataset._rows_per_batch = None

    @property
    def model_id(self) -> str:
        """The product that is ordered now."""
        return self.soft_dataset.model_id

    def set_model(self, model_id: str) -> None:
        """Order another product from now on, in all workers; see `SoftIterableDataset.set_model`.

        Raises:
            ConfigError: `model_id` is no string or longer than 256 bytes.
        """
        self.soft_dataset.set_model(model_id)


class _SharedModelId:
    """A string in memory that forked and spawned workers share.

    No lock: one of a fork context cannot go to a spawned process, and a killed holder would block the others.
        Instead the
    record carries a checksum. A reader that meets a half-written one reads again, and a writer whose record
    was mixed with another writer's writes again, so the last one to finish leaves a whole record.
    """

    def __init__(self, value: str) -> None:
        self._memory = multiprocessing.RawArray("B", _RECORD.size)
        self._view = memoryview(self._memory).cast("B")
        self._seen = (b"", "")
        self.write(value)

    def write(self, value: str) -> None:
        if not isinstance(value, str):
            raise ConfigError(f"model_id must be a string, got {type(value).__name__}")
        text = value.encode()
        if len(text) > _MODEL_ID_BYTES:
            raise ConfigError(
                f'model_id "{value[:32]}..." has {len(text)} bytes of UTF-8; at most {_MODEL_ID_BYTES}'
            )
        record = _RECORD.pack(zlib.crc32(text), len(text), text)
        self._view[:] = record
        while _text_of(bytes(self._view)) is None:
            self._view[:] = record

    def read(self) -> str:
        while True:
            record = bytes(self._view)
            if record == self._seen[0]:
                return self._seen[1]
            text = _text_of(record)
            if text is not None:
                self._seen = (record, text.decode())
                return self._seen[1]
            time.sleep(0)  # lets a writer in this process finish

    def __getstate__(self) -> Any:
        return self._memory

    def __setstate__(self, memory: Any) -> None:
        self._memory = memory
        self._view = memoryview(memory).cast("B")
        self._seen = (b"", "")


def _text_of(record: bytes) -> bytes | None:
    """Return the text of a record, or None if it is torn."""
    checksum, length, padded = _RECORD.unpack(record)
    text: bytes = padded[:length]
    return text if zlib.crc32(text) == checksum else None


def _check_at_least(name: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


def _trainer_died() -> bool:
    """Return whether this is a DataLoader worker whose parent is gone: nobody will take another sample."""
    parent = multiprocessing.parent_process()
    return get_worker_info() is not None and parent is not None and not parent.is_alive()


_MODEL_ID_BYTES = 256
_RECORD = struct.Struct(f"<IH{_MODEL_ID_BYTES}s")
_WAIT_MS = 100
