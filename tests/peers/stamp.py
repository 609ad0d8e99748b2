"""Samples that hold the process that made them, their product, and a digest."""

import hashlib
import os
import struct

_HEADER = struct.Struct("<QQ32s")


class Maker:
    """Makes samples of one size, each different from all others."""

    def __init__(self, slot_size: int) -> None:
        assert slot_size >= _HEADER.size + 16
        self.slot_size = slot_size
        self.serial = 0

    def make(self, product_id: str) -> bytes:
        """The next sample: header, digest of the header, and the digest repeated to the end."""
        self.serial += 1
        header = _HEADER.pack(os.getpid(), self.serial, product_id.encode())
        return header + _filling(header, self.slot_size - len(header))


class Checker:
    """Checks samples of one client, and remembers them."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.makers: set[int] = set()

    def check(self, sample: bytes, product_id: str) -> str | None:
        """What is wrong with a sample; None if it is whole, of this product, and new."""
        header = sample[: _HEADER.size]
        pid, serial, product = _HEADER.unpack(header)
        if sample[len(header) :] != _filling(header, len(sample) - len(header)):
            return f"torn: {sample[:64]!r}"
        if product.rstrip(b"\0").decode() != product_id:
            return f"of product {product!r}, not {product_id!r}"
        if (pid, serial) in self.seen:
            return f"twice: number {serial} of process {pid}"
        self.seen.add((pid, serial))
        self.makers.add(pid)
        return None


def serial_of(sample: bytes) -> int:
    """Which sample of its maker it is, from 1 on."""
    serial: int = _HEADER.unpack_from(sample)[1]
    return serial


def _filling(header: bytes, n: int) -> bytes:
    digest = hashlib.blake2b(header, digest_size=16).digest()
    return (digest * (n // 16 + 1))[:n]


def numbered(sequence: int, slot_size: int) -> bytes:
    """The sample of a stream with this number: the number, and its digest to the end."""
    header = struct.pack("<Q", sequence)
    return header + _filling(header, slot_size - len(header))


def number_of(sample: bytes) -> int:
    """The number of a sample that is whole."""
    header = sample[:8]
    assert sample[8:] == _filling(header, len(sample) - 8), f"torn: {sample[:64]!r}"
    number: int = struct.unpack("<Q", header)[0]
    return number
