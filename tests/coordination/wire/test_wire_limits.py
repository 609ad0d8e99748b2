"""Limits of messages, and messages that contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.options import MAX_SEATS, MAX_TEXT
from softs_fast.coordination.wire import requests
from softs_fast.coordination.wire.formats import FORMATS, FROM_WORKER, TO_WORKER
from softs_fast.errors import WireError
from softs_fast.records import replace

TABLE = m.Table(7, 3, (m.Member(0, 2, "a", 1, ""), m.Member(1, 5, "b", 1, "")), 9, "back", (0,), 0)
TOO_LONG = "x" * (MAX_TEXT + 1)
KEYS = FORMATS[requests.KeysRequest]


def test_reasons_are_cut_and_nothing_else_is() -> None:
    read = FROM_WORKER.decode(FROM_WORKER.encode(m.Fault(1, 2, None, TOO_LONG)))
    assert isinstance(read, m.Fault)
    assert read.text == "x" * (MAX_TEXT - 1) + "…"
    for message, name in (
        (m.CheckpointBegin(1, 2, TOO_LONG), "CheckpointBegin.path"),
        (m.Hello(TOO_LONG, "w", 1), "Hello.job"),
    ):
        with pytest.raises(WireError, match=rf"{name}: Expected str of length <= {MAX_TEXT}"):
            FROM_WORKER.encode(message)
    with pytest.raises(WireError, match=r"Hello.worker_id: Expected str of length <= 256"):
        FROM_WORKER.encode(m.Hello("j", "w" * 257, 1))


@pytest.mark.parametrize("name", ["w\n", "wörker"])
def test_a_worker_id_is_printable_ascii(name: str) -> None:
    with pytest.raises(WireError, match=r"Hello.worker_id: Expected str matching regex"):
        FROM_WORKER.encode(m.Hello("j", name, 1))


def test_a_reason_that_is_not_unicode_is_readable() -> None:
    read = FROM_WORKER.decode(FROM_WORKER.encode(m.Fault(1, 2, None, "file \udc80")))
    assert isinstance(read, m.Fault)
    assert read.text == "file \\udc80"


def test_limits_of_whole_messages() -> None:
    for one, most in ((FROM_WORKER, "65,536"), (TO_WORKER, "4,194,304")):
        with pytest.raises(WireError, match=f"at most {most}"):
            one.decode(bytes(one.most_bytes + 1))
    request = requests.KeysRequest("j", 1, 1, "set", ("k",), bytes(requests.MAX_VALUE_BYTES + 1))
    with pytest.raises(WireError, match=r"KeysRequest.value: Expected bytes of length <= 65536"):
        KEYS.encode(request)


def test_the_largest_table_fits() -> None:
    name, address, big = "w" * 256, "a" * 512, (1 << 63) - 1
    members = tuple(m.Member(rank, rank, name, 2 * big + 1, address) for rank in range(MAX_SEATS))
    ranks = tuple(range(MAX_SEATS))
    table = m.Table(2 * big + 1, big, members, big, "forward", ranks, MAX_SEATS - 1, "p" * MAX_TEXT)
    assert TO_WORKER.decode(TO_WORKER.encode(table)) == table


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
def test_a_table_that_contradicts_itself_is_not_made(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="contradicts itself"):
        replace(TABLE, **change)


def test_a_table_that_contradicts_itself_is_refused() -> None:
    data = TO_WORKER.encode(TABLE)
    with pytest.raises(WireError, match=r"Table: the table of epoch 3 contradicts itself: 2 members"):
        TO_WORKER.decode(data.replace(b"\x10\x05", b"\x10\x02"))


def test_a_message_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(WireError, match=r"FromWorker \(4 bytes\): unknown kind; install the same version"):
        FROM_WORKER.decode(b"\xfa\x01\x01x")
    fence = TO_WORKER.encode(m.Fence(1, 2, "gone", None, ""))
    with pytest.raises(
        WireError, match=r"Fence.cause: Invalid enum value 'number 99'; install the same version"
    ):
        TO_WORKER.decode(fence.replace(b"\x18\x01", b"\x18\x63"))


@pytest.mark.parametrize(
    ("operation", "keys"), [("set", ()), ("get", ("a", "b")), ("wait", ()), ("add", ("a", "b"))]
)
def test_operations_have_as_many_keys_as_they_take(
    operation: requests.Operation, keys: tuple[str, ...]
) -> None:
    (number,) = KEYS.encode(requests.KeysRequest("j", 1, 1, operation, ("k",)))[-4:-3]
    data = bytes([32, number]) + b"".join(b"\x2a\x01" + key.encode() for key in keys)
    with pytest.raises(
        WireError, match=f"KeysRequest: {operation} of 2 keys" if keys else "KeysRequest.keys"
    ):
        KEYS.decode(data)
