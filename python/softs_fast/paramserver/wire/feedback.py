"""What a lossy codec leaves out of a push is added to the next one: error feedback, as a transaction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ConfigError
from .codecs import decode_vector, encode_vector
from .header import Codec
from .tensors import copy_pieces, from_bytes, is_finite

__all__ = ["ErrorFeedback"]

#: Elements that are written at once.
_CHUNK = 1 << 16


class ErrorFeedback:
    """The residual of one worker. A push that the server did not count leaves it as it was.

    Args:
        n: Elements of the parameters.
        codec: Codec of the next push; F32 leaves nothing out.

    Source: 1-bit SGD (Seide et al. 2014), section 3.1; Error Feedback Fixes SignSGD (Karimireddy et al. 2019).
    """

    def __init__(self, n: int, codec: Codec) -> None:
        self._n = n
        #: Of the next push; what earlier ones of another codec have left out goes with the first of it.
        self.codec = codec
        #: Float32 [n]: what counted pushes have left out; None if they have left out nothing.
        self.residual: Tensor | None = None
        self._pending: Tensor | None = None
        #: Memory of the residual after the next one.
        self._spare: Tensor | None = None

    def encode(
        self,
        vector: Tensor | Sequence[Tensor],
        *,
        k: int = 0,
        room: memoryview | None = None,
        absent: Sequence[slice] = (),
    ) -> bytearray | memoryview:
        """Return the bytes of the vector and the residual together. `commit` or `abort` must follow.

        A vector that is not finite is sent without the residual, so that the server refuses it and nothing is lost.

        Args:
            vector: Vector float32 [n] of one push; or pieces of it, one after the other.
            k: Elements that TOP_K keeps.
            room: Memory for the bytes, as for `encode_vector`.
            absent: Ranges without a gradient, of zeros: their residuals stay until a push has one.

        Raises:
            ConfigError: the previous push was neither committed nor aborted.
        """
        if self._pending is not None:
            raise ConfigError("a push is under way; call commit or abort before the next one is encoded")
        pieces = [vector] if isinstance(vector, Tensor) else vector
        data: bytearray | memoryview
        if self.residual is None and self.codec is not Codec.F32:
            self.residual = torch.zeros(self._n, dtype=torch.float32, device="cpu")
        if self.residual is None:
            data = bytearray(4 * self._n) if room is None else room
            copy_pieces(pieces, from_bytes(data, torch.float32))
            return data
        left = torch.empty_like(self.residual) if self._spare is None else self._spare
        self._spare = left
        kept = [self.residual[part].clone() for part in absent]
        for part in absent:
            self.residual[part] = 0
        if self.codec is Codec.BF16:
            data = bytearray(2 * self._n) if room is None else room
            is_good = _encode_bf16(pieces, self.residual, left, from_bytes(data, torch.bfloat16))
        else:
            copy_pieces(pieces, left)
            left += self.residual
            data = encode_vector(left, self.codec, k=k)
            left -= decode_vector(data, self.codec, self._n)
            is_good = is_finite(left)
        for part, one in zip(absent, kept, strict=True):
            self.residual[part] = left[part] = one
        self._pending = left if is_good else self.residual
        return data

    def commit(self) -> None:
        """The push was counted: its residual holds."""
        if self._pending is not None and self._pending is not self.residual:
            self.residual, self._spare = self._pending, self.residual
        # F32 leaves nothing out, but what was left out of absent ranges before may still be there.
        if self.codec is Codec.F32 and self.residual is not None and not bool(self.residual.any()):
            self.residual = self._spare = None
        self._pending = None

    def abort(self) -> None:
        """The push was not counted: the residual before it holds, and its vector is dropped."""
        self._pending = None


def _encode_bf16(pieces: Sequence[Tensor], residual: Tensor, left: Tensor, sent: Tensor) -> bool:
    """Write the sum as bfloat16, and into `left` what that leaves out; each part while it is in the cache.

    Returns:
        Whether all that is left out is finite.
    """
    squares, at = 0.0, 0
    for piece in pieces:
        for begin in range(0, piece.numel(), _CHUNK):
            given = piece[begin : begin + _CHUNK]
            part = slice(at, at + given.numel())
            total, rounded = torch.add(given, residual[part], out=left[part]), sent[part]
            rounded.copy_(total)
            total -= rounded
            squares += float(torch.dot(total, total))
            at += given.numel()
    # The squares of finite numbers may overflow.
    return math.isfinite(squares) or is_finite(left)
