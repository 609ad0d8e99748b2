"""Comparison of the calls of all ranks: a hash for every call, and a description of differences."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from softs_fast.errors import ConfigError

# Bytes of one exchange; with a length in front they fit into one exchange of the native side.
PART_BYTES = 30_000
# More differences than this are counted, not listed.
_MOST_LISTED = 8
# Most bytes of all descriptions together, whatever length a rank announces.
_MOST_BYTES = 64 << 20


class Exchanger(Protocol):
    """An all-gather of up to `PART_BYTES` bytes."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def exchange(self, message: bytes, /) -> list[bytes]:
        """Return the messages of all ranks, by rank."""


@dataclass(frozen=True)
class TensorExchange:
    """An `Exchanger` over an all-gather of tensors of one size.

    Attributes:
        gather: Function that returns the tensors of all ranks, by rank.
        size: Number of ranks.
    """

    gather: Callable[[torch.Tensor], list[torch.Tensor]]
    size: int

    def exchange(self, message: bytes, /) -> list[bytes]:
        """Return the messages of all ranks, by rank."""
        own = torch.zeros(PART_BYTES + 4, dtype=torch.uint8, device="cpu")
        framed = bytearray(len(message).to_bytes(4, "little") + message)
        own[: len(framed)] = torch.frombuffer(framed, dtype=torch.uint8)
        received = [row.cpu().numpy().tobytes() for row in self.gather(own)]
        return [row[4 : 4 + int.from_bytes(row[:4], "little")] for row in received]


def tag_of(manifest: Mapping[str, str]) -> int:
    """Return a number of 56 bits that stands for names and descriptions, in their order."""
    text = "\n".join(f"{name}\t{text}" for name, text in manifest.items())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def tag_of_text(what: str) -> int:
    """Return the tag of a call that a text describes."""
    return tag_of({"": what})


def check_same(what: str, values: Sequence[object]) -> None:
    """Raise ConfigError unless all ranks have the same value; the text lists the values with their ranks."""
    if any(value != values[0] for value in values):
        raise ConfigError(f"{what} differs: {by_value([str(value) for value in values])}")


def difference(group: Exchanger, what: str, manifest: Mapping[str, str]) -> str:
    """Return a text on how the calls of the ranks differ. A collective call itself.

    Args:
        group: the group.
        what: description of this rank's call.
        manifest: its tensors, name to description.

    Raises:
        PeerLost: a rank died during the exchange.
        ConfigError: the ranks are out of step.
    """
    text = "\n".join([_one_line(what), *(f"{_one_line(name)}\t{text}" for name, text in manifest.items())])
    texts = [text.split("\n") for text in _exchange(group, text)]
    calls = [lines[0] for lines in texts]
    if any(call != calls[0] for call in calls):
        return f"ranks make different calls: {by_value(calls)}"
    manifests = [dict(line.partition("\t")[::2] for line in lines[1:]) for lines in texts]
    found = []
    for name in dict.fromkeys(name for names in manifests for name in names):
        values = [names.get(name, "absent") for names in manifests]
        if any(value != values[0] for value in values):
            found.append(f'"{name}": {by_value(values)}')
    if not found:
        return f"ranks make the same call, {calls[0]}, with different schedules; give every rank the same"
    more = f"; and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return f"tensors differ between ranks in {calls[0]}: " + "; ".join(found[:_MOST_LISTED]) + more


def by_value(values: Sequence[str]) -> str:
    """Return the values of the ranks in words: "1 on rank 0, 2; 3 on rank 1"."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return "; ".join(f"{value} on rank {', '.join(holders)}" for value, holders in ranks.items())


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ")


def _exchange(group: Exchanger, text: str) -> list[str]:
    """Return the text of every rank, of any length up to the limit."""
    own = text.encode()
    # The lengths that other ranks announce are bounded before they are used.
    lengths = [int.from_bytes(row[:8], "little") for row in group.exchange(len(own).to_bytes(8, "little"))]
    longest = min(max(lengths), _MOST_BYTES // group.size)
    parts: list[list[bytes]] = [[] for _ in lengths]
    for begin in range(0, longest, PART_BYTES):
        for rank, part in enumerate(group.exchange(own[begin : min(begin + PART_BYTES, longest)])):
            parts[rank].append(part)
    return [b"".join(pieces).decode(errors="replace") for pieces in parts]
