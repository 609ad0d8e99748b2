"""Messages to bytes and back: nothing is lost, no bytes of a peer do harm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
import wire_values as any_
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.events import Opened
from softs_fast.coordination.wire import codec, coordinator_pb2, methods, requests
from softs_fast.coordination.wire.convert import numbers_of
from softs_fast.errors import WireError

REPOSITORY = Path(__file__).parents[3]
TABLE = m.Table(7, 3, (m.Member(0, 2, "a", 1, ""), m.Member(1, 5, "b", 1, "")), 9, "back", (0,), 0)
#: All that decodes bytes of a peer, with bytes that it takes.
DECODERS: list[tuple[Callable[[bytes], Any], bytes]] = [
    (
        codec.decode_from_worker,
        codec.encode_from_worker(m.Hello("j", "w", 1, 3, "a", m.WorkerState(1, 2, 3))),
    ),
    (codec.decode_to_worker, codec.encode_to_worker(TABLE)),
    (codec.decode_action, codec.encode_action(any_.Resize(2, 4))),
    (codec.decode_record, codec.encode_record(Opened(TABLE))),
    *((lambda data, cls=cls: codec.decode_request(cls, data), b"") for cls in methods.REPLIES),
    *((lambda data, cls=cls: codec.decode_reply(cls, data), b"") for cls in methods.REPLIES.values()),
    (codec.decode_status, b""),
]


@given(any_.from_worker)
def test_messages_of_workers_arrive_as_they_were(message: m.FromWorker) -> None:
    assert codec.decode_from_worker(codec.encode_from_worker(message)) == message


@given(any_.to_worker)
def test_messages_to_workers_arrive_as_they_were(message: m.ToWorker) -> None:
    assert codec.decode_to_worker(codec.encode_to_worker(message)) == message


@given(any_.actions)
def test_actions_arrive_as_they_were(action: requests.Action) -> None:
    assert codec.decode_action(codec.encode_action(action)) == action


@given(any_.records)
def test_records_are_read_as_they_were_written(record: Any) -> None:
    assert codec.decode_record(codec.encode_record(record)) == record


@given(any_.requests)
def test_requests_arrive_as_they_were(request: requests.Request) -> None:
    assert codec.decode_request(type(request), codec.encode_request(request)) == request


@given(any_.replies)
def test_replies_arrive_as_they_were(reply: requests.Reply) -> None:
    assert codec.decode_reply(type(reply), codec.encode_reply(reply)) == reply


@given(any_.statuses)
def test_a_status_arrives_as_it_was(status: Any) -> None:
    assert codec.decode_status(codec.encode_status(status)) == status


@pytest.mark.parametrize(("decode", "valid"), DECODERS)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(
    decode: Callable[[bytes], Any], valid: bytes, data: st.DataObject
) -> None:
    garbage = data.draw(st.binary(max_size=300))
    cut = data.draw(st.integers(0, len(valid)))
    position = data.draw(st.integers(0, max(len(valid) - 1, 0)))
    changed = bytearray(valid)
    if changed:
        changed[position] ^= data.draw(st.integers(1, 255))
    for attempt in (garbage, valid[:cut], valid + garbage, bytes(changed)):
        with suppress(WireError):
            decode(attempt)


@pytest.mark.parametrize("literal", [m.Cause, m.Refusal, m.Roll, requests.Operation])
def test_every_value_has_a_number(literal: Any) -> None:
    numbers = numbers_of(literal)
    assert set(numbers) == set(get_args(literal))
    assert 0 not in numbers.values()


def test_the_generated_module_is_that_of_the_file(tmp_path: Path) -> None:
    tools = pytest.importorskip("grpc_tools", reason="needs grpcio-tools")
    assert tools is not None
    file = "softs_fast/coordination/wire/coordinator.proto"
    out = tmp_path / "set"
    include = REPOSITORY / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            include,
            f"--descriptor_set_out={out}",
            include / file,
        ],
        check=True,
    )
    (generated,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    present = descriptor_pb2.FileDescriptorProto()
    coordinator_pb2.DESCRIPTOR.CopyToProto(present)
    for file_proto in (generated, present):
        _drop_json_names(file_proto.message_type)
    assert present == generated, "generate coordinator_pb2.py again; coordinator.proto says how"


def _drop_json_names(messages: Any) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        _drop_json_names(message.nested_type)
