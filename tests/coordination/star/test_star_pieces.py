"""How calls are cut, which ranks are missing, the memory of several tensors, and the bytes of messages: without gRPC."""

from __future__ import annotations

import random
from contextlib import suppress

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from softs_fast.coordination.star import messages as m
from softs_fast.coordination.star import pieces
from softs_fast.coordination.star.attendance import Attendance
from softs_fast.errors import WireError

ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "uint8": 1}
runs = st.lists(
    st.sampled_from(sorted(ITEM)).flatmap(
        lambda dtype: st.builds(pieces.Run, st.just(dtype), st.integers(0, 99), st.just(ITEM[dtype]))
    ),
    max_size=4,
)


@given(runs, st.sampled_from([8, 64, 104]))
def test_each_byte_is_in_one_piece_of_one_dtype(cut_runs: list[pieces.Run], piece_bytes: int) -> None:
    cut = pieces.all_reduce(cut_runs, piece_bytes)
    at = 0
    for piece in cut:
        assert piece.read_at == piece.write_at == at
        assert piece.n_bytes <= piece_bytes
        assert piece.n_bytes == piece.n_items * ITEM[piece.dtype]
        at += piece.n_bytes
    assert at == sum(run.n_items * run.item_bytes for run in cut_runs)
    assert cut, "a call without tensors is a piece, too"
    assert all(piece.is_from(rank) == piece.is_for(rank) == (at > 0) for piece in cut for rank in (0, 3))


@given(st.integers(1, 5), st.integers(0, 99), st.sampled_from([8, 64]))
def test_each_rank_gets_its_part_of_a_reduce_scatter(size: int, n_items: int, piece_bytes: int) -> None:
    for rank in range(size):
        mine = [
            piece
            for piece in pieces.reduce_scatter(pieces.Run("float32", n_items, 4), size, piece_bytes)
            if piece.is_for(rank)
        ]
        found = [(p.read_at + b, p.write_at + b) for p in mine for b in range(p.n_bytes)]
        assert found == [(rank * n_items * 4 + byte, byte) for byte in range(4 * n_items)]


@given(st.integers(1, 5), st.integers(0, 99), st.integers(0, 4))
def test_what_a_rank_has_is_not_sent_to_it(size: int, n_bytes: int, root: int) -> None:
    root = root % size
    gathered = pieces.all_gather(n_bytes, size, 8)
    for rank in range(size):
        written = [p.write_at + b for p in gathered if p.is_for(rank) for b in range(p.n_bytes)]
        assert written == [b for b in range(size * n_bytes) if b // n_bytes != rank]
        sent = [p.read_at + b for p in gathered if p.is_from(rank) for b in range(p.n_bytes)]
        assert sent == list(range(n_bytes))
        copied = [p for p in pieces.broadcast(n_bytes, root, 8) if p.is_for(rank)]
        assert sum(p.n_bytes for p in copied) == (0 if rank == root else n_bytes)


def test_a_late_call_names_the_ranks_that_are_missing() -> None:
    attendance = Attendance(4, 4)
    attendance.came(1, 1, 0)
    assert attendance.missing(1) == [0, 2, 3]
    attendance.begins(1)
    attendance.came(3, 1, 0)
    assert attendance.missing(1) == [2]
    attendance.came(2, 1, 0)
    attendance.awaits(1, [1, 2, 3])
    attendance.came(1, 1, 1)
    assert attendance.missing(1) == [2, 3]
    attendance.came(2, 1, 1)
    attendance.came(3, 1, 1)
    assert attendance.missing(1) == [0], "all have come, so rank 0 does not go on"


@pytest.mark.parametrize(
    "following", [(1, 1), (1, 0), (3, 0), (2, 1), (0, 0)], ids=["twice", "back", "skips", "middle", "zero"]
)
def test_pieces_come_once_and_in_their_order(following: tuple[int, int]) -> None:
    attendance = Attendance(2, 4)
    attendance.came(1, 1, 0)
    attendance.came(1, 1, 1)
    with pytest.raises(WireError, match=r"rank 1 sent piece .* calls and pieces are sent once"):
        attendance.came(1, *following)


def test_a_rank_cannot_fill_the_memory_of_rank_0() -> None:
    attendance = Attendance(2, 2)
    attendance.came(1, 1, 0)
    attendance.came(1, 1, 1)
    attendance.taken(1)
    attendance.came(1, 1, 2)
    with pytest.raises(WireError, match="rank 1 sent 3 pieces that rank 0 has not taken; 2 at most"):
        attendance.came(1, 1, 3)


def test_a_rank_that_has_left_ends_only_later_calls() -> None:
    attendance = Attendance(3, 4)
    for rank in (1, 2):
        attendance.came(rank, 1, 0)
    attendance.leaves(1, "rank 2 has left")
    attendance.begins(1)
    assert attendance.over() == ""
    attendance.came(1, 2, 0)
    assert attendance.over() == "rank 2 has left"


def test_tensors_are_read_and_written_as_one_run() -> None:
    chance = random.Random(1)
    tensors = [torch.arange(n, dtype=torch.int16) for n in (3, 0, 1, 7)] + [torch.tensor(True)]
    flat = pieces.Flat(tensors)
    whole = np.concatenate([tensor.view(-1).view(torch.uint8).numpy() for tensor in tensors])
    for _ in range(100):
        begin = chance.randrange(len(whole))
        n_bytes = chance.randrange(1, len(whole) - begin + 1)
        assert flat.read(begin, n_bytes).tobytes() == whole[begin : begin + n_bytes].tobytes()
        data = chance.randbytes(n_bytes) if begin + n_bytes < len(whole) else whole[begin:].tobytes()
        flat.write(begin, data)
        whole[begin : begin + n_bytes] = np.frombuffer(data, np.uint8)
        assert flat.read(0, len(whole)).tobytes() == whole.tobytes()


# --- Messages ---

PROCESS = m.StarProcess("w0", "boot.4026531836", "höst", 7, 123)
MESSAGES = [
    m.Join(3, 1 << 20, m.PROTOCOL, PROCESS),
    m.Part((1 << 63) - 1, (1 << 64) - 1, 0, b"\0data"),
    m.Late(1),
    m.Leave(0, "why", True),
    m.Welcome(PROCESS),
    m.Differ(2),
    m.Lost(""),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_message_arrives_as_it_was_and_not_in_parts(message: m.Said) -> None:
    envelope = m.Envelope((1 << 64) - 1, 4, 1)
    data = m.encode(envelope, message)
    assert m.decode(data) == (envelope, message)
    for end in range(len(data)):
        with pytest.raises(WireError):
            m.decode(data[:end])
        for byte in range(256):
            changed = bytearray(data)
            changed[end] = byte
            with suppress(WireError):
                m.decode(bytes(changed))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([[7, 4, 1], [8, 1]], r"message of a star \(\d+ bytes\): Letter.message\[0\]: Invalid value 8"),
        ([[7, 4, 1], [2, 1, 0, 0]], "Letter.message: Expected array of at least length 5"),
        ([[7, 4, -1], [3, 1]], "Letter.envelope.rank: Expected int >= 0"),
        ([[7, 4, 1], [7, "x" * 4097]], "Expected str of length <= 4096"),
    ],
)
def test_what_breaks_its_bounds_is_refused(values: object, complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        m.decode(msgpack.packb(values))
