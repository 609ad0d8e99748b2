"""The last committed weights, and the frames in which workers get them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ...rounds.events import Version
from ...wire.frame import Frame, encode_frame
from ...wire.header import Codec, Kind
from ...wire.manifest import Manifest
from ...wire.tensors import Contents, Memory

__all__ = ["Committed", "PullCodec", "Weights"]

PullCodec = Literal["f32", "bf16", "xor"]

#: Frames of which the memory is used again: those of this version, and of the one before, which may be on their way.
_FRAMES = 4


@dataclass(eq=False)
class Committed:
    """Weights that do not change any more.

    Attributes:
        version: Version of the weights.
        contents: Parameters and buffers.
        frames: Frames, encoded once each, by codec and base.
    """

    version: Version
    contents: Contents
    frames: dict[tuple[str, Version | None], asyncio.Task[Frame]] = field(default_factory=dict)


class Weights:
    """The committed weights, and some before them as bases of XOR.

    Args:
        job: Bytes of the invite that name the job.
        manifest: Manifest of the model.
        first: Weights that the server begins with.
        n_bases: Versions that are kept as bases.
        has_planes: Whether frames are compressed.
    """

    def __init__(
        self, job: bytes, manifest: Manifest, first: Committed, n_bases: int, has_planes: bool
    ) -> None:
        self.job = job
        self.manifest = manifest
        self._n_bases = n_bases
        self._memory = Memory(_FRAMES)
        self._has_planes = has_planes
        self._bases: OrderedDict[Version, Tensor] = OrderedDict()
        self.now = first

    def commit(self, committed: Committed) -> None:
        """Serve other weights from now on."""
        self._bases[self.now.version] = self.now.contents.parameters
        while len(self._bases) > self._n_bases:
            self._bases.popitem(last=False)
        self.now = committed

    async def frame(self, codec: PullCodec, have: Version | None) -> Frame:
        """Return the frame of the committed weights for a worker.

        Args:
            codec: Codec that the worker wants; XOR becomes F32 if its base is not here, or nothing would be gained.
            have: Weights that the worker has.
        """
        base = None
        if codec == "xor":
            is_base = self._has_planes and have is not None and have in self._bases
            base, codec = (have, codec) if is_base else (None, "f32")
        now = self.now
        key = (codec, base)
        if key not in now.frames:
            given = None if base is None else (base.number, self._bases[base])
            now.frames[key] = asyncio.ensure_future(asyncio.to_thread(self._encode, now, codec, given))
        return await asyncio.shield(now.frames[key])

    def _encode(self, committed: Committed, codec: PullCodec, base: tuple[int, Tensor] | None) -> Frame:
        return encode_frame(
            committed.contents,
            kind=Kind.WEIGHTS,
            codec=Codec[codec.upper()],
            job=self.job,
            manifest=self.manifest,
            timeline=committed.version.timeline,
            version=committed.version.number,
            planes=self._has_planes,
            base=base,
            memory=self._memory,
        )
