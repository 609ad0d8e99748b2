"""Limits of messages, and messages that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from wire_values import TOO_LONG

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.options import MAX_SEATS, MAX_TEXT
from softs_fast.coordination.wire import codec, requests
from softs_fast.coordination.wire.limits import (
    MAX_SESSION_BYTES,
    MAX_TABLE_BYTES,
    MAX_VALUE_BYTES,
    N_BYTES,
)
from softs_fast.errors import WireError

TABLE = m.Table(7, 3, (m.Member(0, 2, "a", 1, ""), m.Member(1, 5, "b", 1, "")), 9, "back", (0,), 0)


def test_reasons_are_cut_and_nothing_else_is() -> None:
    fault = m.Fault(1, 2, None, TOO_LONG)
    read = codec.decode_from_worker(codec.encode_from_worker(fault))
    assert isinstance(read, m.Fault)
    assert read.text == "x" * (MAX_TEXT - 1) + "…"
    for message in (m.CheckpointBegin(1, 2, TOO_LONG), m.Hello(TOO_LONG, "w", 1)):
        with pytest.raises(WireError, match=f"{MAX_TEXT} at most"):
            codec.encode_from_worker(message)
    with pytest.raises(WireError, match=r"worker_id: has 257 bytes; 256 at most"):
        codec.encode_from_worker(m.Hello("j", "w" * 257, 1))


def test_a_reason_that_is_not_unicode_is_readable() -> None:
    read = codec.decode_from_worker(codec.encode_from_worker(m.Fault(1, 2, None, "file \udc80")))
    assert isinstance(read, m.Fault)
    assert read.text == "file \\udc80"


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(WireError, match=r"Step.number"):
        codec.encode_from_worker(m.Step(1, number))


def test_limits_of_whole_messages() -> None:
    with pytest.raises(WireError, match=f"{MAX_SESSION_BYTES} at most"):
        codec.decode_from_worker(bytes(MAX_SESSION_BYTES + 1))
    with pytest.raises(WireError, match=f"{MAX_TABLE_BYTES} at most"):
        codec.decode_to_worker(bytes(MAX_TABLE_BYTES + 1))
    padded = codec.encode_to_worker(m.Alarm((), "x")) + b"\xa2\x06" + b"\x80\x80\x08" + bytes(1 << 17)
    with pytest.raises(WireError, match=f"{MAX_SESSION_BYTES} at most"):
        codec.decode_to_worker(padded)
    request = requests.KeysRequest("j", 1, 1, "set", ("k",), bytes(MAX_VALUE_BYTES + 1))
    with pytest.raises(WireError, match="the value of a key"):
        codec.encode_request(request)


def test_the_largest_table_fits() -> None:
    name, address = "w" * N_BYTES["worker_id"], "a" * N_BYTES["address"]
    big = (1 << 64) - 1
    members = tuple(m.Member(rank, rank, name, big, address) for rank in range(MAX_SEATS))
    ranks = tuple(range(MAX_SEATS))
    table = m.Table(big, big, members, big, "forward", ranks, MAX_SEATS - 1, "p" * MAX_TEXT)
    assert codec.decode_to_worker(codec.encode_to_worker(table)) == table
    with pytest.raises(WireError, match="at most"):
        codec.encode_to_worker(replace(table, members=(*members, members[0])))


@pytest.mark.parametrize(
    "change",
    [
        {"members": ()},
        {"members": TABLE.members[::-1]},
        {"members": (TABLE.members[0], replace(TABLE.members[1], seat=2))},
        {"members": (TABLE.members[0], replace(TABLE.members[1], seat=MAX_SEATS))},
        {"survivors": (2,)},
        {"source_rank": 2},
    ],
)
def test_a_table_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    assert codec.decode_to_worker(codec.encode_to_worker(TABLE)) == TABLE
    with pytest.raises(WireError, match="contradicts itself"):
        codec.decode_to_worker(codec.encode_to_worker(replace(TABLE, **change)))


def test_a_message_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(
        WireError, match="FromWorker of 4 bytes is of no known kind; install the same version"
    ):
        codec.decode_from_worker(b"\xfa\x01\x01x")
    fence = codec.encode_to_worker(m.Fence(1, 2, "gone", None, ""))
    with pytest.raises(WireError, match=r"Fence.cause: has the unknown value 99"):
        codec.decode_to_worker(fence.replace(b"\x18\x01", b"\x18\x63"))


@pytest.mark.parametrize(
    ("operation", "keys"), [("set", ()), ("get", ("a", "b")), ("wait", ()), ("add", ("a", "b"))]
)
def test_operations_have_as_many_keys_as_they_take(
    operation: requests.Operation, keys: tuple[str, ...]
) -> None:
    data = codec.encode_request(requests.KeysRequest("j", 1, 1, operation, keys))
    with pytest.raises(WireError, match=f"{operation} of {len(keys)} keys"):
        codec.decode_request(requests.KeysRequest, data)
