"""The weights that a worker has, and its pushes: frames out of tensors and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..wire import answers
from ..wire.codecs import top_k_count
from ..wire.feedback import ErrorFeedback
from ..wire.frame import decode_payload, encode_frame
from ..wire.header import Codec, Kind
from ..wire.messages import CodecName, Counted, RunConfig, Stale, Summary
from ..wire.tensors import Contents, Memory
from .exchanges import Download, Upload
from .session import Session
from .sizes import PartSizes, PollWait

__all__ = ["RemoteWeights"]

#: At a time: that of the weights, the next weights, a push.
_FRAMES = 3


class RemoteWeights:
    """The server's weights as this worker knows them.

    Args:
        session: Session that has joined.
        on_progress: Function that takes a text for people, such as "push 12 %".
    """

    def __init__(self, session: Session, on_progress: Callable[[str], None] = lambda text: None) -> None:
        self._session = session
        self._on_progress = on_progress
        self._memory = Memory(_FRAMES)
        #: What pushes have left out.
        self.feedback = ErrorFeedback(session.manifest.n_parameters, Codec[self.push_codec.upper()])
        self._adopt(session.joined.config)
        self.contents: Contents | None = None
        self.timeline = 0
        self.version = 0
        self.summary: Summary | None = None

    @property
    def push_codec(self) -> CodecName:
        """Of the next push: this worker's own, or the server's, which may be another one after it was started again."""
        return self._session.options.push_codec or self._session.joined.config.push_codec

    def pull(self) -> bool:
        """Wait for weights other than those that are here, and take them.

        Returns:
            False if the run is over; the weights are those of its last step then, unless it has failed.

        Raises:
            ConfigError: the server refuses the worker for good.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: what arrived is no frame of this model.
        """
        while self.summary is None:
            if self.contents is not None:
                # Before the first request: the server may hold it for long.
                self._on_progress("waiting for other workers")
            if self._download(self._target):
                return True
        last = (self.summary.timeline, self.summary.version)
        if self.contents is not None and (self.timeline, self.version) != last:
            # Only a request that names no weights is answered by weights now.
            codec = self._session.joined.config.pull_codec
            self._download(lambda wait_s: f"{answers.MODEL}?codec={codec}")
        return False

    def _download(self, target: Callable[[float], str]) -> bool:
        """Ask for weights once; return whether some have arrived."""
        invite, manifest = self._session.invite, self._session.manifest
        download = Download(target, self._poll, manifest, invite.job, self._memory)
        self._session.run(download)
        if download.summary is not None:
            self.summary = download.summary
        if not download.is_complete:
            return False
        self._take(download)
        return True

    def push(
        self,
        pieces: Sequence[Tensor],
        buffers: tuple[Tensor, Tensor] | None,
        kind: Kind,
        samples: int,
        loss: float,
        present: tuple[bool, ...] | None = None,
        lease: int = 0,
    ) -> Counted | Stale | Summary:
        """Send a gradient or a difference, computed from the weights that are here, until the server has decided; return what it said.

        Args:
            pieces: Pieces of the gradient or difference, float32 vectors on the CPU, one after the other,
                n_parameters in all.
            buffers: Floating buffers and others, as `buffers_of` returns them; or None.
            kind: GRADIENT or DIFFERENCE.
            samples: Samples from which it was computed, 1 or more.
            loss: Mean loss of the samples; NaN if it is not known.
            present: Whether each parameter has a gradient; None if all have one. Pieces without one are zeros.
            lease: Number of the lease of the samples; 0 for none.

        Raises:
            ConfigError: the server refuses the worker for good.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the push is not finite, or does not fit the server's model.
        """
        options, manifest = self._session.options, self._session.manifest
        config = self._session.joined.config
        if config != self._config:
            self._adopt(config)
        codec = self.feedback.codec = Codec[self.push_codec.upper()]
        k = top_k_count(manifest.n_parameters, options.top_k_fraction or config.top_k_fraction)
        floats, integers = buffers or (None, None)
        frame = encode_frame(
            Contents(torch.empty(0, dtype=torch.float32, device="cpu"), floats, integers, present), pieces=pieces, kind=kind, codec=codec,
            job=self._session.invite.job, manifest=manifest, timeline=self.timeline, version=self.version, samples=samples,
            loss=loss, lease=lease, planes=config.compression, k=k, feedback=self.feedback, memory=self._memory,
        )  # fmt: skip
        n = max(1, len(frame.payload))
        upload = Upload(frame, self._sizes, lambda done: self._on_progress(f"push {100 * done // n} %"))
        try:
            self._session.run(upload)
        except BaseException:
            self.feedback.abort()
            raise
        result = upload.result
        assert result is not None
        if isinstance(result, Counted):
            self.feedback.commit()
        else:
            self.feedback.abort()
            self.summary = result if isinstance(result, Summary) else None
        return result

    def _adopt(self, config: RunConfig) -> None:
        """Take sizes of a server; what was learned of the road with those of the one before is learned again."""
        max_bytes = self._session.options.max_part_bytes or config.max_part_bytes
        self._config = config
        self._sizes = PartSizes(config.first_part_bytes, min(max_bytes, config.max_part_bytes))
        self._poll = PollWait(config.max_wait_s)

    def _target(self, wait_s: float) -> str:
        codec = self._session.joined.config.pull_codec
        if self.contents is None:
            return f"{answers.MODEL}?codec={codec}"
        have = answers.version_text(self.timeline, self.version)
        # What is exact is sent as what has changed, if the server still holds these weights.
        return f"{answers.MODEL}?have={have}&wait={wait_s:g}&codec={'xor' if codec == 'f32' else codec}"

    def _take(self, download: Download) -> None:
        header = download.header
        assert header is not None
        base = None
        if self.contents is not None and (self.timeline, self.version) == (header.timeline, header.base):
            base = self.contents.parameters
        contents = decode_payload(
            header, download.payload, self._session.manifest, base=base, digest=header.digest
        )
        if self.contents is not None and contents.floats is None:
            contents = replace(contents, floats=self.contents.floats, integers=self.contents.integers)
        self.contents = contents
        self.timeline, self.version = header.timeline, header.version
