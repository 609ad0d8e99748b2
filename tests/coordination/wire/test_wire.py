"""The bytes of messages: those of the release before, and of other languages. `tests/records` has the format itself."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from softs_fast.coordination.wire import requests
from softs_fast.coordination.wire.formats import (
    ACTIONS,
    FORMATS,
    FROM_WORKER,
    RECORDS,
    STATUS,
    TO_WORKER,
    schema_of_messages,
)
from softs_fast.errors import WireError

PYTHON = Path(__file__).parents[3] / "python"
PROTO = "softs_fast/coordination/wire/coordinator.proto"
ALL = {one.what: one for one in (FROM_WORKER, TO_WORKER, ACTIONS, RECORDS, STATUS, *FORMATS.values())}
#: Name, bytes and value of each message, as the release before `Proto` wrote them.
WRITTEN = [
    line.split("\t")
    for line in Path(__file__).with_name("messages_of_protocol_1.tsv").read_text().splitlines()
]


def test_all_kinds_are_there() -> None:
    kinds = {kind.__name__ for one in ALL.values() for kind in one.kinds.values()}
    assert {shown.partition("(")[0] for *_, shown in WRITTEN} == kinds


@pytest.mark.parametrize(("name", "data", "shown"), WRITTEN)
def test_the_bytes_of_protocol_1_stay(name: str, data: str, shown: str) -> None:
    value = ALL[name].decode(bytes.fromhex(data))
    assert repr(value) == shown
    assert ALL[name].encode(value).hex() == data


@given(
    st.sampled_from(WRITTEN),
    st.lists(st.tuples(st.integers(0, 1 << 9), st.integers(0, 255)), max_size=4),
    st.binary(max_size=30),
)
def test_any_bytes_are_a_message_or_an_error(
    written: list[str], changes: list[tuple[int, int]], more: bytes
) -> None:
    name, data, _ = written
    changed = bytearray.fromhex(data) + more
    for at, byte in changes if changed else ():
        changed[at % len(changed)] = byte
    with suppress(WireError):
        ALL[name].decode(bytes(changed))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The file for other languages, as protoc understands it."""
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools")
    out = tmp_path_factory.mktemp("proto") / "set"
    tool = [sys.executable, "-m", "grpc_tools.protoc", "-I", PYTHON, f"--descriptor_set_out={out}"]
    subprocess.run([*tool, PYTHON / PROTO], check=True)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return file


def test_the_file_for_other_languages_has_these_messages() -> None:
    text = (PYTHON / PROTO).read_text()
    assert text.endswith(f"formats.py.\n{schema_of_messages()}"), (
        "replace the end of coordinator.proto by what schema_of_messages() of wire/formats.py returns"
    )


def test_the_file_for_other_languages_has_these_methods(compiled: Any) -> None:
    (service,) = compiled.service
    assert f"{compiled.package}.{service.name}" == requests.SERVICE
    found = {f"/{requests.SERVICE}/{one.name}": (one.input_type, one.output_type) for one in service.method}
    assert found.keys() == {
        *(requests.SESSION, requests.STATUS, requests.WATCH, requests.ADMIN),
        *map(requests.method_of, requests.REPLIES),
    }
    for request, reply in requests.REPLIES.items():
        types = tuple(f".{compiled.package}.{one.__name__}" for one in (request, reply))
        assert found[requests.method_of(request)] == types


@pytest.mark.parametrize(("name", "data", "shown"), [one for one in WRITTEN if one[0] != "StateRecord"])
def test_other_languages_read_and_write_the_same_bytes(
    compiled: Any, name: str, data: str, shown: str
) -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(compiled)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"softs.v1.{name}"))()
    message.ParseFromString(bytes.fromhex(data))
    assert message.SerializeToString().hex() == data
    # Names of enumerations are those of Python with the enumeration in front.
    for text in re.findall(r"(?:cause|code|roll|operation|phase)='(\w+)'", shown):
        assert f"_{text.upper()}\n" in str(message)
