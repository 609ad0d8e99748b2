"""How a flat vector of float32 becomes bytes, and back: float32, bfloat16, int8 by blocks, top-k, XOR; planes and zstd.

Byte planes put the exponents of floats beside each other: these compress, mantissas do not.

Source: byte shuffling of Blosc (Alted, "Why modern CPUs are starving", 2010); measured ratios are in docs/paramserver.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError, WireError
from .header import Codec
from .tensors import from_bytes, to_bytes

__all__ = [
    "BLOCK",
    "compress",
    "compressed_bound",
    "decode_vector",
    "decompress",
    "encode_vector",
    "encoded_sections",
    "import_zstd",
    "top_k_count",
    "total",
]

#: Elements of int8 that share a scale.
BLOCK = 256

_LEVEL = 1
#: Bytes that a decoder looks back: 8 MiB, whatever a sender asks for.
_WINDOW_LOG = 23
#: Bytes that are given to the decoder, and taken from it, at once.
_PIECE = 1 << 18


def encode_vector(
    vector: Tensor, codec: Codec, *, k: int = 0, base: Tensor | None = None, room: memoryview | None = None
) -> bytearray | memoryview:
    """Return the bytes of a vector.

    Args:
        vector: Vector float32 [n], on the CPU, contiguous.
        codec: Codec of the bytes. BF16 and INT8 round to the nearest, and keep NaN.
        k: Elements that TOP_K keeps, 1 to n: those of the greatest magnitude.
        base: Base of XOR, float32 [n].
        room: Memory where F32, BF16 and XOR write their bytes; None: new memory.

    Source: blocks of 256 with one scale: 8-bit Optimizers via Block-wise Quantization (Dettmers et al. 2022), section 2,
        with a linear map. Exclusive or of floats: Gorilla (Pelkonen et al. 2015), section 4.1.2.
    """
    match codec:
        case Codec.F32 | Codec.BF16:
            dtype = torch.float32 if codec is Codec.F32 else torch.bfloat16
            data = bytearray(vector.numel() * dtype.itemsize) if room is None else room
            from_bytes(data, dtype).copy_(vector)
            return data
        case Codec.INT8:
            return _encode_int8(vector)
        case Codec.TOP_K:
            return _encode_top_k(vector, k)
        case Codec.XOR:
            assert base is not None
            data = bytearray(4 * vector.numel()) if room is None else room
            torch.bitwise_xor(
                vector.view(torch.int32), base.view(torch.int32), out=from_bytes(data, torch.int32)
            )
            return data


def decode_vector(
    data: bytes | bytearray | memoryview, codec: Codec, n: int, base: Tensor | None = None
) -> Tensor:
    """Return a vector [n]: float32, and bfloat16 of BF16. Of F32, BF16 and XOR it takes over data that can be written.

    Args:
        data: Bytes as `encode_vector` returns them; their length has been checked against `encoded_sections`.
        codec: Codec of the frame.
        n: Elements of the vector.
        base: Base of XOR, float32 [n].

    Raises:
        WireError: indices of TOP_K do not ascend, or one is n or more.
    """
    match codec:
        case Codec.F32:
            return from_bytes(data, torch.float32)
        case Codec.BF16:
            return from_bytes(data, torch.bfloat16)
        case Codec.INT8:
            return _decode_int8(data, n)
        case Codec.TOP_K:
            return _decode_top_k(data, n)
        case Codec.XOR:
            assert base is not None
            return from_bytes(data, torch.int32).bitwise_xor_(base.view(torch.int32)).view(torch.float32)


def encoded_sections(codec: Codec, n: int, k: int = 0) -> list[tuple[int, int]]:
    """Return (bytes, width of an element) of each run of equal elements: how long the bytes are, and their planes.

    Args:
        codec: Codec of the frame.
        n: Elements of the vector.
        k: Elements of TOP_K.
    """
    match codec:
        case Codec.F32 | Codec.XOR:
            return [(4 * n, 4)]
        case Codec.BF16:
            return [(2 * n, 2)]
        case Codec.INT8:
            return [(4 * _n_blocks(n), 4), (n, 1)]
        case Codec.TOP_K:
            return [(4 * k, 4), (4 * k, 4)]


def top_k_count(n: int, fraction: float) -> int:
    """Return how many of n elements TOP_K keeps: at least 1."""
    return min(n, max(1, round(n * fraction)))


def _n_blocks(n: int) -> int:
    return -(-n // BLOCK)


def _blocks(flat: Tensor, n: int) -> Tensor:
    """A vector as [blocks, 256], padded by zeros."""
    padded = flat.new_zeros(_n_blocks(n) * BLOCK)
    padded[:n] = flat
    return padded.view(-1, BLOCK)


def _encode_int8(vector: Tensor) -> bytearray:
    n = vector.numel()
    blocks = _blocks(vector, n)
    scales = blocks.abs().amax(dim=1) / 127
    # A block of zeros, or of the smallest floats, has the scale 0, and any divisor gives 0. One with a NaN or an
    # infinity has a scale that says so, and a server refuses it.
    divisors = torch.where((scales == 0) | ~torch.isfinite(scales), torch.inf, scales)
    quotients = torch.nan_to_num(blocks / divisors[:, None]).round_().clamp_(-127, 127)
    return to_bytes(scales) + to_bytes(quotients.to(torch.int8).view(-1)[:n])


def _decode_int8(data: bytes | bytearray | memoryview, n: int) -> Tensor:
    view, scales_bytes = memoryview(data), 4 * _n_blocks(n)
    scales = from_bytes(view[:scales_bytes], torch.float32)
    values = _blocks(from_bytes(view[scales_bytes:], torch.int8).to(torch.float32), n)
    # Not in place with a part of the result: 0 times an infinite scale is NaN, which is what a server looks for.
    return (values * scales[:, None]).view(-1)[:n]


def _encode_top_k(vector: Tensor, k: int) -> bytearray:
    # NaN is greater than all numbers here, so that it is sent and refused.
    indices = vector.abs().topk(k, sorted=False).indices.sort().values
    return to_bytes(indices.to(torch.int32)) + to_bytes(vector[indices])


def _decode_top_k(data: bytes | bytearray | memoryview, n: int) -> Tensor:
    view, half = memoryview(data), len(data) // 2
    indices = from_bytes(view[:half], torch.int32).to(torch.int64)
    ascends = bool((indices[1:] > indices[:-1]).all())
    if indices.numel() and not (ascends and int(indices[0]) >= 0 and int(indices[-1]) < n):
        raise WireError(f"the {indices.numel()} indices of a top-k frame do not ascend from 0 to {n - 1}")
    vector = torch.zeros(n, dtype=torch.float32, device="cpu")
    vector[indices] = from_bytes(view[half:], torch.float32)
    return vector


def total(sections: Sequence[tuple[int, int]]) -> int:
    """Return the bytes of all sections."""
    return sum(n for n, _ in sections)


def import_zstd() -> Any:
    """Return the module: `compression.zstd` of Python 3.14, or backports.zstd.

    Raises:
        ConfigError: neither is there.
    """
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError(
        "zstd is of Python 3.14, and backports.zstd is not installed; pip install 'softs-fast[paramworker]'"
    )


def compress(data: bytearray | memoryview, sections: Sequence[tuple[int, int]]) -> bytearray:
    """Return the planes of each section, compressed.

    Args:
        data: Bytes that a frame holds.
        sections: Pairs (bytes, width of an element) of each run of equal elements; all bytes together are `data`.
    """
    zstd = import_zstd()
    parameters = zstd.CompressionParameter
    options = {parameters.compression_level: _LEVEL, parameters.window_log: 20}
    compressor = zstd.ZstdCompressor(options=options)
    packed, begin = bytearray(), 0
    for n, width in sections:
        piece = memoryview(data)[begin : begin + n]
        packed += compressor.compress(_turned(piece, -1, width))
        begin += n
    packed += compressor.flush()
    return packed


def compressed_bound(n: int) -> int:
    """Return the length that n bytes never exceed when they are compressed."""
    return n + (n >> 7) + 1024


def decompress(
    data: bytes | bytearray | memoryview, n: int, sections: Sequence[tuple[int, int]]
) -> bytearray:
    """Return the n bytes that were compressed, and not one more: a frame that would become longer is left there.

    Args:
        data: Bytes as `compress` returns them.
        n: Bytes that the header promised and the manifest allows.
        sections: Sections, as for `compress`.

    Raises:
        WireError: the data are not zstd, asks for a larger window, or become fewer or more than n bytes.
    """
    zstd = import_zstd()
    decoder = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
    planes, view, given = bytearray(), memoryview(data), 0
    try:
        while not decoder.eof:
            piece: bytes | memoryview = b""
            if decoder.needs_input:
                if given == len(view):
                    raise WireError(f"a frame ends after {len(planes)} decoded bytes; need {n}")
                piece = view[given : given + _PIECE]
                given += len(piece)
            # One byte more than is allowed is enough to know.
            planes += decoder.decompress(piece, max_length=min(_PIECE, n - len(planes) + 1))
            if len(planes) > n:
                raise WireError(f"a frame becomes longer than the {n} bytes of its header")
    except zstd.ZstdError as error:
        raise WireError(f"a frame is not zstd with a window of {1 << _WINDOW_LOG} bytes: {error}") from None
    if len(planes) != n or decoder.unused_data or given != len(view):
        raise WireError(
            f"a frame becomes {len(planes)} bytes, and has more behind them; need {n} and no more"
        )
    whole, begin = bytearray(n), 0
    for length, width in sections:
        whole[begin : begin + length] = _turned(memoryview(planes)[begin : begin + length], width, -1)
        begin += length
    return whole


def _turned(data: memoryview, rows: int, columns: int) -> bytearray | memoryview:
    """Return a matrix of bytes by columns: of elements, first the first byte of each, then the second, ..."""
    if 1 in (rows, columns) or not len(data):
        return data
    return to_bytes(from_bytes(data, torch.uint8).view(rows, columns).t())
