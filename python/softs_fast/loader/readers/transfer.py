"""Batches on a device: each is copied there while the caller works with the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ...tensors import call_on_all, check_visible, named_device
from ..sample_iterator import Reader

__all__ = ["Transfer", "TransferReader", "target_device"]


class _Moved(NamedTuple):
    source: Any
    item: Any
    #: Recorded after the copies; None where there is no stream.
    event: torch.cuda.Event | None


class Transfer:
    """Copies items to a device, on a CUDA device in a stream of its own.

    Args:
        device: Device to which items are copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def begin(self, item: Any) -> _Moved:
        """Begin to copy an item; its tensors should be in pinned memory, which torch does not use again before it was read."""
        if self._stream is None:
            return _Moved(item, _moved(item, self._device), None)
        with torch.cuda.stream(self._stream):
            return _Moved(item, _moved(item, self._device), self._stream.record_event())

    def finish(self, moved: _Moved) -> Any:
        """Return the copy, for use in torch's current stream, which waits for it; this thread does not."""
        if moved.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(moved.event)
            for tensor in _tensors(moved.item):
                # Its memory belongs to the stream of the copy, which must not use it again before this one is done.
                tensor.record_stream(stream)
        return moved.item

    def __call__(self, item: Any) -> Any:
        """Copy an item."""
        return self.finish(self.begin(item))


class TransferReader:
    """Hands out the items of another reader on a device, and copies the next one there while the caller is busy.

    Args:
        reader: makes the items; owned by this one.
        transfer: copies them.
        keeps_source: Whether the item on the host is kept in `source` when it is handed out on the device.
    """

    def __init__(self, reader: Reader, transfer: Transfer, *, keeps_source: bool = False) -> None:
        self.n_rows = reader.n_rows
        self._reader = reader
        self._transfer = transfer
        self._keeps_source = keeps_source
        #: The item that was handed out last, on the host.
        self.source: Any = None
        self._done = 0
        self._moved: _Moved | None = None
        self._error: Exception | None = None

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots."""
        return self._reader.is_starved

    def begin(self, product_id: str) -> None:
        """Begin to copy the next item if it is there."""
        self._reader.begin(product_id)
        try:
            self._fetch(product_id, 0)
        except Exception as error:
            # That of the next item; the caller gets another one now.
            self._error = error

    def forget(self) -> None:
        """Drop the item that was not handed out."""
        self._moved = self._error = None
        self._done = 0
        self._reader.forget()

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Have the next item on its way, waiting up to timeout_ms for samples; see the other reader."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._fetch(product_id, timeout_ms)

    def take(self) -> Any:
        """Hand out the item."""
        moved, self._moved = self._moved, None
        assert moved is not None
        self.source = moved.source if self._keeps_source else None
        return self._transfer.finish(moved)

    def _fetch(self, product_id: str, timeout_ms: int) -> int:
        if self._moved is None:
            self._done = self._reader.fill(product_id, self._done, timeout_ms)
            if self._done != self.n_rows:
                return self._done
            self._done = 0
            self._moved = self._transfer.begin(self._reader.take())
        return self.n_rows


def target_device(device: object) -> torch.device | None:
    """Return the device to which batches are copied; None for that of the host.

    Raises:
        ConfigError: torch knows no such device, or this process does not see it.
    """
    if device is None:
        return None
    target = named_device(device)
    check_visible(target)
    return None if target.type == "cpu" else target


def _moved(item: Any, device: torch.device) -> Any:
    return call_on_all(item, "to", device, non_blocking=True)


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an item."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from _tensors(value)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _tensors(value)
