"""Pushes: announced, sent in parts, checked, counted."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from ....errors import WireError
from ...rounds import events
from ...rounds.events import Version
from ...wire.answers import Code
from ...wire.frame import check_header, decode_payload
from ...wire.header import FrameHeader, Kind
from ...wire.limits import MAX_PART_BYTES
from ...wire.messages import Counted, Stale, UploadState
from ...wire.tensors import Contents, first_not_finite
from ..driver import Driver
from .request import Refusal, Reply, Request, failure
from .uploads import Upload, Uploads

__all__ = ["Pushes", "refusal_of"]


class Pushes:
    """All uploads.

    Args:
        driver: Driver of the run.
        max_bytes: Bytes of memory for uploads and pushes that no step has used.
    """

    def __init__(self, driver: Driver, max_bytes: int) -> None:
        self._driver = driver
        self._manifest, self._config = driver.weights.manifest, driver.config
        self._kind = Kind.DIFFERENCE if driver.config.local_steps else Kind.GRADIENT
        self.uploads = Uploads(max_bytes)
        self.n_bytes = 0

    async def announce(self, worker_id: str, head: bytes, rest: bytes) -> Reply:
        """Take the header of a push, and perhaps all of its payload.

        Raises:
            Refusal: it does not count.
        """
        try:
            header = FrameHeader.decode(head)
            check_header(header, self._manifest, self._driver.weights.job)
            if header.kind is not self._kind:
                raise WireError(
                    f"a push is a {header.kind.name.lower()}; this run has {self._kind.name.lower()}s"
                )
            if (header.lease != 0) != (self._config.data == "leases"):
                raise WireError(
                    f"a push names the lease {header.lease} of samples; this run hands out "
                    f"{'some: ask for them at /v1/data' if header.lease == 0 else 'none'}"
                )
            if rest and len(rest) != header.encoded_bytes:
                raise WireError(f"a push has {len(rest)} of {header.encoded_bytes} bytes; need all, or none")
        except WireError as error:
            raise failure(Code.BAD_PUSH, str(error), "use the same job on both sides") from None
        base = Version(header.timeline, header.version)
        self._check(self._driver.tell(events.Offer(worker_id, base, header.lease or None)))
        present = {one.worker_id for one in self._driver.status().members}
        upload = self.uploads.begin(worker_id, header, head, present, self._driver.kept_bytes)
        if upload.head != head:
            # The one before has arrived, and is looked at: it counts, if it can be read.
            await self._finish(upload)
            return await self.announce(worker_id, head, rest)
        if rest and upload.result is None:
            part = upload.begin_part(len(rest) - upload.offset)
            part.room()[:] = rest[upload.offset :]
            part.arrived(len(rest) - upload.offset)
        if upload.is_complete:
            return Reply.of(await self._finish(upload))
        return Reply.of(self._state(upload), HTTPStatus.CREATED)

    async def part(self, upload: Upload, request: Request, offset: int) -> Reply:
        """Take a part of a push.

        Raises:
            Refusal: the push does not count, or the part begins elsewhere than where the last one ended.
            Disconnected: the peer is gone; what has arrived is kept.
        """
        self._check(self._driver.tell(events.Offer(upload.worker_id, upload.base, upload.lease)), upload)
        if upload.result is None:
            if offset != upload.offset:
                raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, self._state(upload))
            try:
                part = upload.begin_part(request.length(MAX_PART_BYTES) or 0)
            except WireError as error:
                self.uploads.drop(upload.worker_id)
                raise failure(Code.BAD_DIGEST, str(error), "send it again") from None
            try:
                is_whole = await request.read_into(part, MAX_PART_BYTES)
            finally:
                self.n_bytes += part.n
            if not is_whole:
                raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, self._state(upload))
        if upload.is_complete:
            return Reply.of(await self._finish(upload))
        # While the next part is on its way.
        asyncio.get_running_loop().run_in_executor(None, upload.hash_arrived)
        return Reply.of(self._state(upload), HTTPStatus.ACCEPTED)

    def _state(self, upload: Upload) -> UploadState:
        return UploadState(upload.offset, self._config.max_part_bytes)

    async def _finish(self, upload: Upload) -> Counted:
        """Look at a push of which all bytes are here, once, however many requests ask; the peer may be gone meanwhile."""
        if upload.result is None:
            upload.result = asyncio.get_running_loop().create_future()
            # If no request waits any more, its exception is of no interest.
            upload.result.add_done_callback(lambda future: future.cancelled() or future.exception())
            self._driver.spawn(self._look_at(upload, upload.result))
        counted: Counted = await asyncio.shield(upload.result)
        return counted

    async def _look_at(self, upload: Upload, result: asyncio.Future[Counted]) -> None:
        try:
            counted = await self._count(upload)
        except Exception as error:
            result.set_exception(error)
        else:
            result.set_result(counted)
        finally:
            if self.uploads.find(upload.worker_id) is upload:
                self.uploads.drop(upload.worker_id)

    async def _count(self, upload: Upload) -> Counted:
        header = upload.header
        try:
            contents, bad = await asyncio.to_thread(self._decode, upload)
        except WireError as error:
            if upload.digest != header.digest:
                raise failure(Code.BAD_DIGEST, str(error), "send it again") from None
            raise failure(Code.BAD_PUSH, str(error)) from None
        if bad is not None:
            raise failure(
                Code.NOT_FINITE,
                f"the push of version {upload.base} has a NaN or an infinity in {bad}",
                "lower the learning rate, or clip gradients",
            )
        content = self._driver.keep(contents)
        loss = None if header.loss != header.loss else header.loss
        answer = self._driver.tell(
            events.Push(upload.worker_id, upload.base, header.samples, loss, content, upload.lease)
        )
        self._check(answer)
        assert isinstance(answer, Counted)
        return answer

    def _decode(self, upload: Upload) -> tuple[Contents, str | None]:
        upload.hash_arrived()
        contents = decode_payload(upload.header, upload.payload, self._manifest, digest=upload.digest)
        held = self._driver.weights.now.contents.floats
        return contents, first_not_finite(contents, self._manifest, held)

    def _check(self, answer: events.Action | None, upload: Upload | None = None) -> None:
        """Raise what an answer of the machine means, unless the push is wanted or counts."""
        if isinstance(answer, events.Noted) or (isinstance(answer, Counted) and not answer.again):
            return
        if upload is not None:
            self.uploads.drop(upload.worker_id)
        if isinstance(answer, Counted):
            raise Refusal(HTTPStatus.OK, answer)
        raise refusal_of(answer, self._driver)


def refusal_of(answer: events.Action | None, driver: Driver) -> Refusal:
    """Return the error for an answer of the machine that is none of those that a request expects."""
    match answer:
        case Stale():
            return Refusal(HTTPStatus.CONFLICT, answer)
        case events.Over():
            return Refusal(HTTPStatus.GONE, driver.summary())
        case events.Refused(code, message, remedy, retry_s):
            return failure(code, message, remedy, retry_s=retry_s)
        case _:
            raise TypeError(f"the run has no answer to a request: {answer}")
