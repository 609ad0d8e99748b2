"""Order of a stream: which element of a collection each sample number is, by permutations with random access."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..errors import GeneratorFailed

__all__ = ["Order", "permuted"]

#: Four rounds make a Feistel network a pseudorandom permutation; more help where halves have few bits.
_N_ROUNDS = 6


@dataclass(frozen=True)
class Order:
    """Maps numbers of samples to elements: each pass through a collection has a permutation of its own.

    Nothing is stored, so any worker finds any sample at once, and a stream goes on wherever it is told.

    Args:
        seed: Seed of the permutations; another seed gives another order.
        repeat: Whether a pass follows the one before; otherwise a stream ends with its first pass.
    """

    seed: int = 0
    repeat: bool = True

    def index(self, number: int, rank: int, n: int) -> int:
        """Return which of n elements sample `number` of a rank's stream is.

        Raises:
            GeneratorFailed: the stream ends before this sample.
        """
        pass_number, place = divmod(number, n)
        if pass_number and not self.repeat:
            raise GeneratorFailed(
                f"the texts or data are used up: one pass has samples 0 to {n - 1}, and repeat=False; sample {number} "
                "was ordered"
            )
        key = hashlib.blake2b(f"{self.seed}/{rank}/{pass_number}".encode(), digest_size=32).digest()
        return permuted(place, n, key)


def permuted(place: int, n: int, key: bytes) -> int:
    """Return the image of a place under the permutation of 0 to n - 1 that a key selects.

    Args:
        place: Number from 0 to n - 1.
        n: Number of places, at most 2**64.
        key: Key of up to 64 bytes.

    Source: Feistel network with cycle walking, Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for round_number in range(_N_ROUNDS):
            text = round_number.to_bytes(1, "little") + right.to_bytes(8, "little")
            digest = hashlib.blake2b(text, digest_size=8, key=key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        place = left << half | right
        # The network permutes a power of four; a place beyond n leads on to the next one of its cycle.
        if place < n:
            return place
