"""Which reader makes the items of a plan."""

from __future__ import annotations

from typing import Any, Protocol

from ...configs import BatchConfig
from ...market import Client
from ..plan import IterationPlan
from ..sample_iterator import Reader
from .blocks import BlockRows, rows_of
from .copying import MappedReader, SampleRows, batch_reader
from .device import DeviceBlockReader, DeviceReader
from .items import pinned
from .transfer import Transfer, TransferReader
from .views import BlockReader

__all__ = ["Layout", "make_reader"]


class Layout(Protocol):
    """What a reader needs to know of a dataset."""

    batch_config: BatchConfig
    zero_copy: bool
    is_on_device: bool


def make_reader(data: Layout, client: Client, plan: IterationPlan, block: int) -> Reader:
    """Return a reader for the items of a plan.

    Args:
        data: Layout of the samples, and where they are.
        client: Client that has the slots.
        plan: Plan of the items to make.
        block: Slots per block of the client.
    """
    reader = _reader(data, client, plan, block)
    is_gathered = plan.batch_size is not None and plan.make_batch is None and not data.zero_copy
    if plan.pins and not is_gathered:
        reader = MappedReader(reader, pinned)
    if plan.device is None:
        return reader
    return TransferReader(reader, Transfer(plan.device), keeps_source=plan.record is not None)


def _reader(data: Layout, client: Client, plan: IterationPlan, block: int) -> Reader:
    batch_size, make_batch = plan.batch_size, plan.make_batch
    if batch_size is None:
        samples = _samples(data, client, block)
        return samples if make_batch is None else MappedReader(samples, make_batch)
    if data.zero_copy:
        batches: Reader = _blocks(data, client, block)
    elif data.is_on_device:
        batches = DeviceReader(data.batch_config, client, batch_size)
    elif make_batch is None:
        return batch_reader(data.batch_config, client, plan)
    else:
        return MappedReader(SampleRows(data.batch_config, client, batch_size), make_batch)
    if make_batch is None:
        return batches
    return MappedReader(batches, lambda batch: make_batch(rows_of(batch, batch_size)))


def _samples(data: Layout, client: Client, block: int) -> Reader:
    if data.zero_copy:
        return BlockRows(_blocks(data, client, block))
    if data.is_on_device:
        return MappedReader(DeviceReader(data.batch_config, client, 1), _first_row)
    return MappedReader(SampleRows(data.batch_config, client, 1), _first)


def _blocks(data: Layout, client: Client, block: int) -> BlockReader | DeviceBlockReader:
    n_blocks = client.slot_count // block
    if data.is_on_device:
        return DeviceBlockReader(data.batch_config, client, block, n_blocks)
    return BlockReader(data.batch_config, client, block, n_blocks)


def _first(rows: list[Any]) -> Any:
    return rows[0]


def _first_row(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor[0] for name, tensor in batch.items()}
