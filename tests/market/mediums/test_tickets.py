"""What a slot of a CudaIpcMedium begins with: any bytes may be there."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import WireError
from softs_fast.identity import Process
from softs_fast.market.mediums.cuda.slot_ticket import (
    PATTERN_BYTES,
    PAYLOAD_AT,
    RECEIPT_AT,
    RECEIPT_BYTES,
    Place,
    Receipt,
    Ticket,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HANDLE = st.binary(min_size=64, max_size=64)
OWNER = st.builds(Process, U32, U64, U64)
ON_HOST = st.builds(Ticket, U64, U32, U64, OWNER)
TICKET = Ticket(
    7, 9, 100, Process(1, 2, 3), "0123456789abcdef" * 2, 200, 300, b"a" * 64, b"f" * 64, b"d" * 64
)


@given(ON_HOST, HANDLE, HANDLE, HANDLE, st.text("0123456789abcdef", min_size=32, max_size=32), U32, U32)
def test_what_is_written_is_read_back(
    host: Ticket, arena: bytes, filled: bytes, drained: bytes, device_id: str, offset: int, more: int
) -> None:
    assert Ticket.decode(host.encode()) == host
    payload = host.payload_bytes % 2**40
    device = Ticket(
        host.generation,
        host.slot_id,
        payload,
        host.owner,
        device_id,
        offset,
        offset + payload + PATTERN_BYTES + more,
        arena,
        filled,
        drained,
    )
    encoded = device.encode()
    assert len(encoded) == RECEIPT_AT
    assert Ticket.decode(encoded) == device


@given(st.integers(0, 8 * 380 - 1))
def test_one_bit_that_is_not_right_is_an_error(bit: int) -> None:
    data = bytearray(TICKET.encode())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WireError):
        Ticket.decode(bytes(data))


@given(st.binary(min_size=RECEIPT_AT, max_size=RECEIPT_AT))
def test_noise_is_no_ticket(noise: bytes) -> None:
    for data in (noise, noise[:-1], TICKET.encode()[:16] + noise[16:]):
        with pytest.raises(WireError):
            Ticket.decode(data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"offset": 301}, "cannot be"),
        ({"offset": 201}, "cannot be"),
        ({"payload_bytes": 2**64 - 1}, "cannot be"),
        ({"device_id": "!" * 32}, "cannot be"),
    ],
)
def test_a_ticket_that_leaves_its_arena_is_refused(change: dict[str, int], why: str) -> None:
    """Whole, with the right sum, but impossible."""
    with pytest.raises(WireError, match=why):
        Ticket.decode(dataclasses.replace(TICKET, **change).encode())


def test_the_layout_is_the_documented_one() -> None:
    encoded = TICKET.encode()
    assert (encoded[:8], encoded[8:16]) == (b"SLTICKET", b"\1\0\0\0\1\0\0\0")
    assert [int.from_bytes(encoded[at : at + 8], "little") for at in (16, 24, 32, 40, 56, 64)] == [
        7,
        100,
        200,
        300,
        2,
        3,
    ]
    assert [int.from_bytes(encoded[at : at + 4], "little") for at in (48, 52)] == [1, 9]
    assert encoded[72:104] == b"0123456789abcdef" * 2
    assert encoded[104:296] == b"a" * 64 + b"f" * 64 + b"d" * 64
    assert (
        Receipt(1, Place.IN_SEGMENT, 2, 3).encode().hex()
        == "01" + "00" * 7 + "03000000" + "02000000" + "03" + "00" * 15
    )
    assert RECEIPT_AT + RECEIPT_BYTES <= PAYLOAD_AT


@given(U64, st.sampled_from(Place), U32, U64)
def test_receipts(generation: int, place: Place, pid: int, start: int) -> None:
    receipt = Receipt(generation, place, pid, start)
    assert Receipt.decode(receipt.encode()) == receipt


@given(st.binary(min_size=RECEIPT_BYTES, max_size=RECEIPT_BYTES))
def test_a_receipt_is_none_or_says_a_place(noise: bytes) -> None:
    place = int.from_bytes(noise[8:12], "little")
    if place in (0, 1, 2, 3):
        assert Receipt.decode(noise).place == place
    else:
        with pytest.raises(WireError, match="no receipt"):
            Receipt.decode(noise)
