"""Messages of a star to bytes and back: nothing is lost, no bytes of a peer do harm."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from google.protobuf import descriptor_pb2

from softs_fast.coordination.star import messages as m
from softs_fast.coordination.star import star_pb2
from softs_fast.errors import WireError

REPOSITORY = Path(__file__).parents[3]
u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
processes = st.builds(m.StarProcess, text, text, text, u64, u64)
parts = st.builds(m.Part, u64, u64, u64, st.binary(max_size=99))
from_rank = st.one_of(
    st.builds(m.Join, u32, u32, u32, processes),
    parts,
    st.builds(m.Late, u64),
    st.builds(m.Leave, u64, text, st.booleans()),
)
from_root = st.one_of(
    st.builds(m.Welcome, processes), parts, st.builds(m.Differ, u64), st.builds(m.Lost, text)
)
envelopes = st.builds(m.Envelope, u64, u64, u32)


@given(envelopes, from_rank)
def test_messages_of_ranks_arrive_as_they_were(envelope: m.Envelope, message: m.FromRank) -> None:
    assert m.decode_from_rank(m.encode_from_rank(envelope, message)) == (envelope, message)


@given(envelopes, from_root)
def test_messages_of_rank_0_arrive_as_they_were(envelope: m.Envelope, message: m.FromRoot) -> None:
    found, decoded = m.decode_from_root(m.encode_from_root(envelope, message))
    assert decoded == message
    assert (found.boot, found.epoch) == (envelope.boot, envelope.epoch)


@pytest.mark.parametrize("decode", [m.decode_from_rank, m.decode_from_root])
@given(data=st.data())
def test_any_bytes_are_read_or_refused(decode: Any, data: st.DataObject) -> None:
    valid = m.encode_from_rank(m.Envelope(1, 2, 3), m.Leave(1, "why", True))
    changed = bytearray(valid)
    changed[data.draw(st.integers(0, len(valid) - 1))] ^= data.draw(st.integers(1, 255))
    for attempt in (
        data.draw(st.binary(max_size=300)),
        bytes(changed),
        valid[: data.draw(st.integers(0, 20))],
    ):
        with suppress(WireError):
            decode(attempt)


def test_a_message_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(WireError, match="FromRank of 4 bytes is of no known kind; install the same version"):
        m.decode_from_rank(b"\xfa\x01\x01x")


def test_the_generated_module_is_that_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools")
    file, out = "softs_fast/coordination/star/star.proto", tmp_path / "set"
    include = REPOSITORY / "python"
    tool = [sys.executable, "-m", "grpc_tools.protoc", "-I", include, f"--descriptor_set_out={out}"]
    subprocess.run([*tool, include / file], check=True)
    (generated,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    present = descriptor_pb2.FileDescriptorProto()
    star_pb2.DESCRIPTOR.CopyToProto(present)
    for one in (generated, present):
        for message in one.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert present == generated, "generate star_pb2.py again; star.proto says how"
