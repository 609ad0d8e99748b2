"""Byte planes and zstd: the exponents of floats beside each other compress, their mantissas do not.

Source: byte shuffling of Blosc (Alted, "Why modern CPUs are starving", 2010); measured ratios are in docs/paramserver.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ConfigError, WireError
from .tensors import from_bytes, to_bytes

__all__ = ["compress", "compressed_bound", "decompress", "from_planes", "import_zstd", "to_planes"]

_LEVEL = 1
#: Bytes that a decoder looks back: 8 MiB, whatever a sender asks for.
_WINDOW_LOG = 23
#: Bytes that are given to the decoder, and taken from it, at once.
_PIECE = 1 << 18


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
        packed += compressor.compress(to_planes(piece, width))
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
        whole[begin : begin + length] = from_planes(memoryview(planes)[begin : begin + length], width)
        begin += length
    return whole


def to_planes(data: memoryview, width: int) -> bytes | bytearray | memoryview:
    """Return first the first byte of each element, then the second, ..."""
    if width == 1 or not len(data):
        return data
    return to_bytes(from_bytes(data, torch.uint8).view(-1, width).t())


def from_planes(data: memoryview, width: int) -> bytes | bytearray | memoryview:
    """Undo `to_planes`."""
    if width == 1 or not len(data):
        return data
    return to_bytes(from_bytes(data, torch.uint8).view(width, -1).t())
