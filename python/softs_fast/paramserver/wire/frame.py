"""Frames: a header of 128 bytes and a payload in the order of the manifest.

A payload is the parameters as one vector, written by the codec; then, if the frame has buffers, the floating ones as
float32 and the others as int64; then, if the frame is partial, a byte for each parameter, 0 for one without a gradient;
then, if the frame says so, all of it as byte planes compressed by zstd. Frames hold no
names: there is nothing to parse. A receiver calls `check_header` with the 128 bytes before it takes one byte of the
payload, and `decode_payload` when it has all of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...errors import WireError
from .codecs import (
    compress,
    compressed_bound,
    decode_vector,
    decompress,
    encode_vector,
    encoded_sections,
    total,
)
from .feedback import ErrorFeedback
from .header import HEADER_BYTES, Codec, FrameHeader, Kind
from .manifest import Manifest
from .tensors import Contents, Memory, from_bytes, to_bytes

__all__ = ["Frame", "check_header", "decode_payload", "encode_frame"]


@dataclass(frozen=True)
class Frame:
    """Header and payload.

    Attributes:
        header: Header, which says what the payload is.
        payload: Bytes of the payload.
    """

    header: FrameHeader
    payload: bytes | bytearray | memoryview

    def __len__(self) -> int:
        """Return the bytes of both."""
        return HEADER_BYTES + len(self.payload)


def encode_frame(
    contents: Contents,
    *,
    kind: Kind,
    codec: Codec,
    job: bytes,
    manifest: Manifest,
    timeline: int,
    version: int,
    samples: int = 0,
    loss: float = float("nan"),
    lease: int = 0,
    planes: bool = False,
    k: int = 0,
    base: tuple[int, Tensor] | None = None,
    feedback: ErrorFeedback | None = None,
    memory: Memory | None = None,
    pieces: Sequence[Tensor] | None = None,
) -> Frame:
    """Write a frame.

    Args:
        contents: Parameters float32 [n_parameters]; buffers, or None.
        kind: Kind of the contents.
        codec: Codec of the parameters.
        job: 16 bytes that name the job.
        manifest: Manifest of the model.
        timeline: Timeline of the weights.
        version: Version of the weights, or of those from which a push was computed.
        samples: Samples of a push, 1 or more.
        loss: Loss of a push; NaN if it is not known.
        lease: Number of the lease of the samples of a push; 0 for none.
        planes: Whether the payload is split into byte planes and compressed.
        k: Elements of TOP_K.
        base: Version and parameters of the weights that XOR takes.
        feedback: Error feedback, which writes the parameters with what earlier pushes left out; its `commit` or
            `abort` must follow.
        memory: Memory for the payload; None: new memory.
        pieces: Pieces of the parameters, one after the other, instead of those of the contents; only with `feedback`.

    Raises:
        WireError: a field of the header is out of range, or the contents do not fit the manifest.
    """
    n = contents.parameters.numel() if pieces is None else sum(one.numel() for one in pieces)
    if n != manifest.n_parameters:
        raise WireError(f"contents have {n} elements; the manifest has {manifest.n_parameters}")
    has_buffers = contents.floats is not None and contents.integers is not None
    present = contents.present
    end = total(encoded_sections(codec, n, k))
    rest = _rest_bytes(manifest, has_buffers, present is not None)
    whole = (memory or Memory(0)).take(end + rest)
    room = whole[:end]
    if feedback is not None:
        places = zip(manifest.parameter_slices, present or (), strict=present is not None)
        absent = [part for part, is_there in places if not is_there]
        vector = contents.parameters if pieces is None else pieces
        written = feedback.encode(vector, k=k, room=room, absent=absent)
    else:
        written = encode_vector(contents.parameters, codec, k=k, base=base[1] if base else None, room=room)
    if written is not room:
        room[:] = written
    if contents.floats is not None and contents.integers is not None:
        end += _buffer_bytes(manifest)
        whole[end - _buffer_bytes(manifest) : end] = to_bytes(contents.floats) + to_bytes(contents.integers)
    if present is not None:
        whole[end:] = bytes(present)
    header = FrameHeader(
        kind, codec, job, manifest.digest[:16], timeline, version, samples, loss, len(whole), len(whole),
        b"", base[0] if base else 0, has_buffers, planes, lease, present is not None,
    )  # fmt: skip
    payload = compress(whole, _sections(header, manifest)) if planes else whole
    digest = hashlib.sha256(payload).digest()
    return Frame(replace(header, encoded_bytes=len(payload), digest=digest), payload)


def check_header(header: FrameHeader, manifest: Manifest, job: bytes) -> None:
    """Compare a header with what this side expects: before memory for its payload is taken.

    Raises:
        WireError: it is of another job or model, or its lengths are not those of the manifest.
    """
    if header.job != job:
        raise WireError(f"a frame is of the job {header.job.hex()}; this one is {job.hex()}")
    if header.manifest != manifest.digest[:16]:
        raise WireError(
            f"a frame is of the model {header.manifest.hex()}; this one is {manifest.digest[:16].hex()}"
        )
    sections = _sections(header, manifest)
    if total(sections) != header.decoded_bytes:
        raise WireError(
            f"a frame of the codec {header.codec.name} has {header.decoded_bytes} bytes; the manifest needs {total(sections)}"
        )
    most = compressed_bound(header.decoded_bytes)
    if header.encoded_bytes > most:
        raise WireError(f"a frame travels as {header.encoded_bytes} bytes; {most} at most for what it holds")


def decode_payload(
    header: FrameHeader,
    payload: bytes | bytearray | memoryview,
    manifest: Manifest,
    *,
    base: Tensor | None = None,
    digest: bytes | None = None,
) -> Contents:
    """Return what a payload holds. Tensors may be views of a payload that can be written.

    Args:
        header: Header that `check_header` has accepted.
        payload: All bytes of the payload.
        manifest: Manifest of the model.
        base: Parameters of version `header.base`, float32 [n_parameters], for XOR.
        digest: SHA-256 of the payload, if the caller has computed it while parts arrived.

    Raises:
        WireError: the digest differs, zstd fails or would become longer, or indices are out of range.
    """
    if len(payload) != header.encoded_bytes:
        raise WireError(f"a payload has {len(payload)} bytes; its header says {header.encoded_bytes}")
    if not hmac.compare_digest(digest or hashlib.sha256(payload).digest(), header.digest):
        raise WireError("the SHA-256 of a payload is not the one of its header; send it again")
    if header.codec is Codec.XOR and base is None:
        raise WireError(f"a frame needs version {header.base}, which is not held; ask for whole weights")
    sections = _sections(header, manifest)
    if header.planes:
        payload = decompress(payload, header.decoded_bytes, sections)
    view = memoryview(payload)
    end = header.decoded_bytes - _rest_bytes(manifest, header.has_buffers, header.is_partial)
    vector = decode_vector(view[:end], header.codec, manifest.n_parameters, base)
    contents = Contents(vector)
    if header.has_buffers:
        middle = end + 4 * manifest.n_floats
        end += _buffer_bytes(manifest)
        # A copy, since int64 must lie at a multiple of 8, and the bytes before need not.
        contents.floats = from_bytes(bytearray(view[end - _buffer_bytes(manifest) : middle]), torch.float32)
        contents.integers = from_bytes(bytearray(view[middle:end]), torch.int64)
    if header.is_partial:
        given = bytes(view[end:])
        if given.translate(None, b"\0\1"):
            raise WireError("a partial push has a byte other than 0 and 1 for a parameter")
        contents.present = tuple(map(bool, given))
    return contents


def _buffer_bytes(manifest: Manifest) -> int:
    return 4 * manifest.n_floats + 8 * manifest.n_integers


def _rest_bytes(manifest: Manifest, has_buffers: bool, is_partial: bool) -> int:
    """What follows the parameters."""
    return has_buffers * _buffer_bytes(manifest) + is_partial * len(manifest.parameters)


def _sections(header: FrameHeader, manifest: Manifest) -> list[tuple[int, int]]:
    """The runs of equal elements of a payload. How many elements TOP_K has follows from the length."""
    rest = _rest_bytes(manifest, header.has_buffers, header.is_partial)
    k = 0
    if header.codec is Codec.TOP_K:
        k = min(max(header.decoded_bytes - rest, 8) // 8, manifest.n_parameters)
    sections = encoded_sections(header.codec, manifest.n_parameters, k)
    if header.has_buffers:
        sections += [(4 * manifest.n_floats, 4), (8 * manifest.n_integers, 8)]
    if header.is_partial:
        sections += [(len(manifest.parameters), 1)]
    return sections
