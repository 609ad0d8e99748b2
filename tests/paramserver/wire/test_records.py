"""JSON bodies, and residuals, which are committed only when a push was counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.errors import ConfigError, WireError
from softs_fast.paramserver.wire import messages as m
from softs_fast.paramserver.wire.answers import parse_version, version_text
from softs_fast.paramserver.wire.codecs import decode_vector
from softs_fast.paramserver.wire.feedback import ErrorFeedback
from softs_fast.paramserver.wire.header import Codec
from softs_fast.paramserver.wire.messages import decode, encode
from softs_fast.paramserver.worker.batches import order, shard

CONFIG = m.RunConfig(rounds=10, batch_size=32, push_codec="int8", data="leases", dataset_size=100)
RECORDS = [
    m.JoinRequest("mac", (1,), "{}", "ab" * 16),
    m.JoinAnswer("w1", 0, 3, CONFIG, "cd" * 16, 1, 5),
    m.UploadState(5, 1 << 18),
    m.Counted(1, 3),
    m.Stale(1, 6),
    m.Failure("kicked", "w1 was removed", "ask the owner"),
    m.DataRequest(64, 7),
    m.Heartbeat(3),
    m.Leave("RuntimeError: no memory"),
    m.DataRange(2, 7, ((0, 32), (64, 96))),
    m.Summary(1, 10, "done", 0.5, None),
    m.Control("kick", "w1"),
    m.Status(
        *(4, "open", 1, 5, 10, 3, 1, 2, "worker w2 since 3 s"),
        members=(m.MemberStatus("w1", "mac", 0, "active"),),
        log=("w2 joined",),
    ),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: type(one).__name__)
def test_records_are_read_as_they_were_written(record: Any) -> None:
    assert decode(type(record), encode(record)) == record


def test_keys_of_a_later_version_are_left_out() -> None:
    assert decode(m.Counted, b'{"have": 1, "need": 2, "colour": "red"}') == m.Counted(1, 2)


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (m.Counted, b"[]", "Counted: Expected object, got array"),
        (m.Counted, b'{"have": 1}', "Counted: Object missing required field need"),
        (m.Counted, b'{"have": -1, "need": 1}', "Counted.have: Expected int >= 0"),
        (m.Counted, b'{"have": true, "need": 1}', "Counted.have: Expected int, got bool"),
        (m.Counted, b'{"have": 1.5, "need": 1}', "Counted.have: Expected int, got float"),
        (m.Counted, b'{"have": 9223372036854775808, "need": 1}', "Counted.have: Expected int <= 9223372036854775807"),
        (m.Counted, b'{"have": 1, "need": 1, "again": 1}', "Counted.again: Expected bool, got int"),
        (m.Summary, b'{"timeline": 1, "version": 1, "loss": NaN}', "malformed"),
        (m.Summary, b'{"timeline": 1, "version": 1, "loss": 1e999}', "Summary.loss: Number out of range"),
        (m.Control, b'{"action": "erase"}', "Control.action: Invalid enum value 'erase'"),
        (m.Failure, b'{"code": "c", "message": "\\ud800"}', "Failure: "),
        (m.Failure, b'{"code": "c", "message": "\\u0000"}', "Failure.message: Expected str matching regex"),
        (m.Failure, b'{"code": "' + b"c" * 65 + b'", "message": ""}', "Failure.code: Expected str of length <= 64"),
        (m.DataRange, b'{"epoch": 1, "seed": 1, "ranges": [[1]]}', r"ranges\[0\]: Expected array of length 2"),
        (m.DataRange, b'{"epoch": 1, "seed": 1, "ranges": ' + json.dumps([[0, 1]] * 4097).encode() + b"}", ".* <= 4096"),
        (m.JoinRequest, b'{"name": "", "protocols": [1], "manifest": "", "nonce": "zz"}', "JoinRequest.nonce: Expected str matching regex"),
        (m.Counted, b"[" * 50_000, "Counted: Expected object, got array"),
        (m.Counted, b" " * 70_000, "at most 65,536"),
    ],
)  # fmt: skip
def test_bad_records_are_refused_by_field(kind: type, data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        decode(kind, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(data=st.data(), index=st.integers(0, len(RECORDS) - 1))
def test_a_field_with_any_value_is_refused_or_kept(data: st.DataObject, index: int) -> None:
    record = RECORDS[index]
    value = json.loads(encode(record))
    value[data.draw(st.sampled_from(sorted(value)))] = data.draw(JSON)
    try:
        read = decode(type(record), json.dumps(value).encode())
    except WireError:
        return
    assert decode(type(record), encode(read)) == read


@pytest.mark.parametrize("text", ["", "1", "1.", ".2", "1.2.3", "-1.2", "1.2 ", "a.b", "1." + "9" * 20])
def test_versions(text: str) -> None:
    assert parse_version(version_text(3, 99)) == (3, 99)
    with pytest.raises(WireError, match="is no version"):
        parse_version(text)


def test_the_order_of_samples_is_the_same_everywhere() -> None:
    # Written down once: another machine or version of Python must give the same.
    assert order(7, 0, 8) == ORDER
    assert sorted(order(1, 2, 1000)) == list(range(1000))
    assert order(1, 2, 1000) != order(1, 3, 1000)
    assert sorted(one for rank in range(3) for one in shard(ORDER, rank, 3)) == list(range(8))


ORDER = [7, 3, 4, 1, 6, 0, 2, 5]


@pytest.mark.parametrize("codec", [Codec.BF16, Codec.INT8, Codec.TOP_K])
def test_what_is_left_out_is_sent_later(codec: Codec) -> None:
    generator = torch.Generator().manual_seed(3)
    feedback, sent, given_ = ErrorFeedback(500, codec), torch.zeros(500), torch.zeros(500)
    for step in range(40):
        vector = torch.randn(500, generator=generator)
        data = feedback.encode(vector, k=50)
        if step % 4 == 3:
            # Not counted: the vector is dropped, and the residual stays as it was.
            before = feedback.residual
            feedback.abort()
            assert feedback.residual is before
            continue
        feedback.commit()
        given_ += vector
        sent += decode_vector(data, codec, 500)
    assert feedback.residual is not None
    assert torch.allclose(sent + feedback.residual, given_, atol=1e-4)
    if codec is not Codec.TOP_K:
        assert feedback.residual.abs().max() < 0.05


def test_a_push_ends_before_the_next_one_begins() -> None:
    feedback = ErrorFeedback(4, Codec.BF16)
    feedback.encode(torch.ones(4))
    with pytest.raises(ConfigError, match="a push is under way"):
        feedback.encode(torch.ones(4))


def test_a_vector_that_is_not_finite_leaves_the_residual() -> None:
    feedback = ErrorFeedback(4, Codec.INT8)
    feedback.encode(torch.tensor([1.0, 0.333, 0.5, 0.1]))
    feedback.commit()
    before = feedback.residual
    assert before is not None
    assert before.abs().max() > 0
    feedback.encode(torch.tensor([1.0, torch.nan, 0.5, 0.1]))
    feedback.commit()
    assert feedback.residual is not None
    assert torch.equal(feedback.residual, before)


def test_exact_pushes_have_no_residual() -> None:
    feedback = ErrorFeedback(4, Codec.F32)
    assert feedback.residual is None
    feedback.encode(torch.ones(4))
    feedback.encode(torch.ones(4))


@pytest.mark.parametrize("codec", [Codec.BF16, Codec.INT8, Codec.TOP_K])
def test_what_was_left_out_waits_for_a_gradient(codec: Codec) -> None:
    """A parameter without a gradient gets none, so nothing of it may be sent, and nothing may be lost."""
    feedback, absent = ErrorFeedback(512, codec), [slice(256, 512)]
    first = torch.linspace(1, 3, 512)
    feedback.encode(first, k=8)
    feedback.commit()
    assert feedback.residual is not None
    left = feedback.residual[256:].clone()
    assert left.any()
    feedback.encode(torch.zeros(512), k=8)
    feedback.abort()
    present = torch.cat([first[:256], torch.zeros(256)])
    for _ in range(2):
        sent = decode_vector(feedback.encode(present, k=8, absent=absent), codec, 512)
        feedback.commit()
        assert not sent[256:].any()
        assert torch.equal(feedback.residual[256:], left)
    # With an exact codec too, what is left goes with the first gradient.
    feedback.codec = Codec.F32
    feedback.encode(present, absent=absent)
    feedback.commit()
    assert torch.equal(feedback.residual[256:], left)
    sent = decode_vector(feedback.encode(torch.zeros(512)), Codec.F32, 512)
    feedback.commit()
    assert torch.equal(sent[256:], left)
    assert feedback.residual is None


def test_the_residual_is_float32_whatever_the_default_dtype_and_device() -> None:
    with torch.device("meta"):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            feedback = ErrorFeedback(4, Codec.BF16)
            feedback.encode(torch.ones(4, dtype=torch.float32, device="cpu"))
        finally:
            torch.set_default_dtype(before)
    assert feedback.residual is not None
    assert (feedback.residual.dtype, feedback.residual.device.type) == (torch.float32, "cpu")
