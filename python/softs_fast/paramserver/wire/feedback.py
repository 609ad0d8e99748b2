"""What a lossy codec leaves out of a push is added to the next one: error feedback, as a transaction."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import ConfigError
from .codecs import decode_vector, encode_vector
from .header import Codec
from .tensors import from_bytes, is_finite

__all__ = ["ErrorFeedback"]

#: Elements that are written at once.
_CHUNK = 1 << 16


class ErrorFeedback:
    """The residual of one worker. A push that the server did not count leaves it as it was.

    Args:
        n: elements of the parameters.
        codec: of the next push; F32 leaves nothing out, and has no residual.

    Source: 1-bit SGD (Seide et al. 2014), section 3.1; Error Feedback Fixes SignSGD (Karimireddy et al. 2019).
    """

    def __init__(self, n: int, codec: Codec) -> None:
        self._n = n
        self._codec = codec
        self._residual: Tensor | None = None if codec is Codec.F32 else torch.zeros(n)
        self._pending: Tensor | None = None
        #: Memory of the residual after the next one.
        self._spare: Tensor | None = None

    @property
    def residual(self) -> Tensor | None:
        """Float32 [n]: what counted pushes have left out; None for F32."""
        return self._residual

    @property
    def codec(self) -> Codec:
        """Of the next push."""
        return self._codec

    @codec.setter
    def codec(self, codec: Codec) -> None:
        """Have the next pushes be of another codec; what earlier ones have left out goes with the first of them."""
        self._codec = codec
        if codec is not Codec.F32 and self._residual is None:
            self._residual = torch.zeros(self._n)

    def encode(self, vector: Tensor, *, k: int = 0, room: memoryview | None = None) -> bytearray | memoryview:
        """Return the bytes of the vector and the residual together. `commit` or `abort` must follow.

        A vector that is not finite is sent without the residual, so that the server refuses it and nothing is lost.

        Args:
            vector: float32 [n], of one push.
            k: elements that TOP_K keeps.
            room: as for `encode_vector`.

        Raises:
            ConfigError: the previous push was neither committed nor aborted.
        """
        if self._pending is not None:
            raise ConfigError("a push is under way; call commit or abort before the next one is encoded")
        if self._residual is None:
            return encode_vector(vector, self.codec, room=room)
        left = torch.empty_like(self._residual) if self._spare is None else self._spare
        self._spare = left
        data: bytearray | memoryview
        if self.codec is Codec.BF16:
            data = bytearray(2 * vector.numel()) if room is None else room
            _encode_bf16(vector, self._residual, left, from_bytes(data, torch.bfloat16))
        else:
            torch.add(vector, self._residual, out=left)
            data = encode_vector(left, self.codec, k=k)
            left -= decode_vector(data, self.codec, vector.numel())
        self._pending = left if is_finite(left) else self._residual
        return data

    def commit(self) -> None:
        """The push was counted: its residual holds."""
        if self._pending is not None and self._pending is not self._residual:
            self._residual, self._spare = self._pending, self._residual
        if self._codec is Codec.F32:
            self._residual = self._spare = None
        self._pending = None

    def abort(self) -> None:
        """The push was not counted: the residual before it holds, and its vector is dropped."""
        self._pending = None


def _encode_bf16(vector: Tensor, residual: Tensor, left: Tensor, sent: Tensor) -> None:
    """Write the sum as bfloat16, and into `left` what that leaves out; each piece while it is in the cache."""
    for begin in range(0, vector.numel(), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        total, rounded = torch.add(vector[part], residual[part], out=left[part]), sent[part]
        rounded.copy_(total)
        total -= rounded
