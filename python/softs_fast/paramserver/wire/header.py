"""The first 128 bytes of a frame: what it is, of which model, and how long it becomes."""

from __future__ import annotations

import enum
import hashlib
import math
import struct
from dataclasses import dataclass

from ...errors import WireError
from .limits import MAX_SAMPLES

__all__ = ["HEADER_BYTES", "PROTOCOL", "Codec", "FrameHeader", "Kind"]

HEADER_BYTES = 128
#: Of this module; a join names those that a worker knows. In 2 a push could not say that a parameter has no gradient.
PROTOCOL = 3

_MAGIC = b"SFPS"
_HAS_BUFFERS, _PLANES, _IS_PARTIAL = 1, 2, 4
#: magic, protocol, kind, codec, flags, job, manifest, timeline, lease, version, base, samples, loss, zero, encoded, decoded, SHA-256
_FORMAT = struct.Struct("<4s4B16s16sIIQQQf4xQQ32s")
assert _FORMAT.size == HEADER_BYTES


class Kind(enum.IntEnum):
    """What the payload is."""

    WEIGHTS = 1
    GRADIENT = 2
    #: Weights at the start of local steps less those at their end: a server's optimizer takes it as a gradient.
    DIFFERENCE = 3


class Codec(enum.IntEnum):
    """How the parameters of the payload are written; buffers are always float32 and int64."""

    F32 = 1
    BF16 = 2
    #: Scales float32 [blocks of 256], then int8 [n].
    INT8 = 3
    #: Indices uint32 [k], ascending, then float32 [k]; all others are 0.
    TOP_K = 4
    #: Bits of float32, exclusive or with those of an earlier version.
    XOR = 5


#: What a frame of weights may be written with; pushes take the others.
_OF_WEIGHTS = (Codec.F32, Codec.BF16, Codec.XOR)


@dataclass(frozen=True)
class FrameHeader:
    """Of one frame.

    Attributes:
        kind: Kind of the payload.
        codec: Codec of its parameters.
        job: 16 bytes that name the job.
        manifest: First 16 bytes of the manifest's digest.
        timeline: T of the weights; a server that starts from a file begins the next one.
        version: V of these weights, or of those from which a push was computed.
        samples: Samples from which a push was computed; 0 for weights.
        loss: Mean loss of these samples; NaN if it is not known.
        encoded_bytes: Bytes of the payload as it travels.
        decoded_bytes: Bytes of the payload without planes and zstd.
        digest: SHA-256 of the payload as it travels.
        base: V of the weights that XOR takes; 0 for the other codecs.
        has_buffers: Whether buffers follow the parameters.
        planes: Whether the payload was split into byte planes and compressed by zstd.
        lease: Number of the lease of which the samples of a push are; 0 for none.
        is_partial: Whether a byte for each parameter ends the payload: 0 for one without a gradient, else 1.
    """

    kind: Kind
    codec: Codec
    job: bytes
    manifest: bytes
    timeline: int
    version: int
    samples: int
    loss: float
    encoded_bytes: int
    decoded_bytes: int
    digest: bytes
    base: int = 0
    has_buffers: bool = False
    planes: bool = False
    lease: int = 0
    is_partial: bool = False

    def encode(self) -> bytes:
        """Return the 128 bytes.

        Raises:
            WireError: a field is out of range.
        """
        try:
            packed = _FORMAT.pack(
                _MAGIC, PROTOCOL, self.kind, self.codec,
                _HAS_BUFFERS * self.has_buffers + _PLANES * self.planes + _IS_PARTIAL * self.is_partial,
                self.job, self.manifest, self.timeline, self.lease, self.version, self.base, self.samples, self.loss,
                self.encoded_bytes, self.decoded_bytes, self.digest,
            )  # fmt: skip
        except struct.error as error:
            raise WireError(f"a frame's header cannot be written: {error}: {self}") from None
        self._check()
        return packed

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> FrameHeader:
        """Parse the first 128 bytes of a frame. Lengths are only numbers here: `check_header` compares them.

        Raises:
            WireError: the bytes are too few, are no header of this protocol, or contradict themselves.
        """
        if len(data) < HEADER_BYTES:
            raise WireError(f"a frame has {len(data)} bytes; need {HEADER_BYTES} of its header")
        fields = _FORMAT.unpack_from(data)
        magic, protocol, kind, codec, flags, job, manifest, timeline, lease = fields[:9]
        version, base, samples, loss, encoded, decoded, digest = fields[9:]
        if magic != _MAGIC:
            raise WireError(f"a frame begins with {magic!r}; need {_MAGIC!r}")
        if protocol != PROTOCOL:
            raise WireError(
                f"a frame has protocol {protocol}; this side has {PROTOCOL}: install the same version"
            )
        if bytes(data[:HEADER_BYTES]) != _FORMAT.pack(*fields) or flags > (
            _HAS_BUFFERS | _PLANES | _IS_PARTIAL
        ):
            raise WireError(f"a frame has flags {flags} or bits that are set where zeros belong")
        try:
            header = cls(
                Kind(kind), Codec(codec), job, manifest, timeline, version, samples, loss, encoded, decoded, digest,
                base, bool(flags & _HAS_BUFFERS), bool(flags & _PLANES), lease, bool(flags & _IS_PARTIAL),
            )  # fmt: skip
        except ValueError as error:
            raise WireError(f"a frame has an unknown kind or codec: {error}") from None
        header._check()
        return header

    @property
    def signed_digest(self) -> bytes:
        """SHA-256 of the 128 bytes: what signatures cover. It covers the payload, of which `digest` is a part."""
        return hashlib.sha256(self.encode()).digest()

    def _check(self) -> None:
        is_weights = self.kind is Kind.WEIGHTS
        if is_weights != (self.codec in _OF_WEIGHTS) and self.codec not in (Codec.F32, Codec.BF16):
            raise WireError(f"a frame of kind {self.kind.name} cannot have the codec {self.codec.name}")
        if (self.base != 0) and self.codec is not Codec.XOR:
            raise WireError(
                f"a frame of the codec {self.codec.name} has the base {self.base}; only XOR has one"
            )
        if self.codec is Codec.XOR and self.base >= self.version:
            raise WireError(f"version {self.version} has the base {self.base}; need an earlier one")
        if is_weights != (self.samples == 0) or self.samples > MAX_SAMPLES:
            raise WireError(
                f"a frame of kind {self.kind.name} is of {self.samples} samples; "
                f"need {'0' if is_weights else f'1 to {MAX_SAMPLES}'}"
            )
        if self.lease and is_weights:
            raise WireError(
                f"a frame of kind {self.kind.name} names the lease {self.lease}; only a push has one"
            )
        if self.is_partial and is_weights:
            raise WireError("a frame of weights is partial; only a push may lack the gradient of a parameter")
        if math.isinf(self.loss):
            raise WireError("the loss of a frame is infinite; need a number, or NaN if it is not known")
        if not self.planes and self.encoded_bytes != self.decoded_bytes:
            raise WireError(
                f"a frame without zstd has {self.encoded_bytes} bytes that become {self.decoded_bytes}"
            )
