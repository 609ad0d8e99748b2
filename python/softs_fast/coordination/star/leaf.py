"""The connection of a rank to rank 0."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from ...errors import ConfigError, PeerLost, SoftsError, WireError
from ..requirements import import_grpc
from ..session.channels import certificate_problem, open_channel
from .calls import AHEAD, LeafCalls
from .mailboxes import Mailboxes
from .messages import (
    METHOD,
    PROTOCOL,
    SERVICE,
    Differ,
    Envelope,
    Join,
    Lost,
    Part,
    StarProcess,
    Welcome,
    decode,
    encode,
)
from .options import Epoch, StarOptions

__all__ = ["Leaf"]

#: How long rank 0 may take to end the stream of a rank that has left.
_CLOSE_S = 2.0
#: The same if the group is over; one that is stopped may take longer, and its stream ends by pings.
_LAST_WORDS_S = 0.5


class Leaf:
    """A rank other than 0: it sends its pieces to rank 0, and gets results.

    Args:
        rank: Number of this rank.
        size: Number of ranks.
        address: Address of rank 0.
        epoch: Epoch of the group.
        options: Options of the star.
        timeout_s: Seconds to wait for a piece of a result.
        logger: Logger that is told what ends the group.

    Attributes:
        calls: Calls of this rank.
        boxes: Mailboxes for the messages from and to rank 0.

    Raises:
        ConfigError: gRPC is not installed; a file cannot be read; rank 0 is on another machine and there is no TLS, or it
            refuses this rank.
        PeerLost: rank 0 does not answer, or the group is over.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        address: str,
        epoch: Epoch,
        options: StarOptions,
        timeout_s: float,
        logger: logging.Logger,
    ) -> None:
        self._grpc = import_grpc()
        self._address = address
        self._credentials = options.client
        self._logger = logger
        self._envelope = Envelope(epoch.boot, epoch.number, rank)
        self.boxes = Mailboxes((0,), AHEAD, AHEAD + 2)
        self.calls = LeafCalls(self._envelope, self.boxes, self.named, timeout_s)
        self._root: StarProcess | None = None
        self._welcomed = threading.Event()
        self._channel = open_channel(address, options.client, options.pings, "rank 0")
        process = StarProcess.this(epoch.workers[rank] if epoch.workers else "")
        join = Join(size, options.piece_bytes, PROTOCOL, process)
        self.boxes.send(0, encode(self._envelope, join), time.monotonic() + timeout_s)
        stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self._call: Any = stream(self.boxes.outgoing(0))
        self._reader = threading.Thread(target=self._read, name="softs-star", daemon=True)
        self._reader.start()
        self._wait_for_welcome(timeout_s)

    def give_up(self, reason: str) -> None:
        """End all calls of this rank, and tell the others. Idempotent."""
        self.calls.give_up(reason)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self.boxes.error is not None:
            self._reader.join(_LAST_WORDS_S)
        else:
            try:
                self.calls.leave("it has closed the group")
                self._reader.join(_CLOSE_S)
            except (SoftsError, TimeoutError):
                self._logger.debug("rank 0 is gone", exc_info=True)
            self.boxes.end(PeerLost("the group is closed"))
            self._call.cancel()
            self._reader.join()

    def named(self, rank: int) -> str:
        """Return rank 0 with its process, and what has become of it."""
        if self._root is None:
            return f"rank 0 at {self._address}"
        state = self._root.state
        return f"rank 0 ({self._root}{f', which {state}' if state else ''})"

    def _wait_for_welcome(self, timeout_s: float) -> None:
        if not self._welcomed.wait(timeout_s):
            self.give_up(f"rank 0 at {self._address} does not answer within {timeout_s:g} s")
            self._call.cancel()
        if self.boxes.error is not None:
            self._reader.join()
            raise type(self.boxes.error)(str(self.boxes.error))

    def _read(self) -> None:
        """Read the stream to its end, in a thread of its own."""
        try:
            for data in self._call:
                self._received(*decode(data))
            self.boxes.finish(0, f"{self.named(0)} has closed the group")
        except self._grpc.RpcError as error:
            self._end(self._error_of(error))
        except WireError as error:
            self._end(WireError(f"{self.named(0)} breaks the protocol: {error}"))
        finally:
            self.boxes.close_box(0)
            self._channel.close()
            self._welcomed.set()

    def _received(self, envelope: Envelope, message: object) -> None:
        if (envelope.boot, envelope.epoch) != (self._envelope.boot, self._envelope.epoch):
            raise WireError(f"a message of {envelope} came; this group is of {self._envelope}")
        match message:
            case Welcome(process):
                self._root = process
                self._welcomed.set()
            case Part() | Differ():
                self.boxes.put(0, message)
            case Lost(text):
                # After the results of calls that rank 0 has completed.
                self._logger.warning("the group of %s is over: %s", self._envelope, text)
                self.boxes.finish(0, text)
            case _:
                raise WireError(f"{type(message).__name__} came from rank 0")

    def _end(self, error: SoftsError) -> None:
        if self.boxes.end(error):
            self._logger.warning("the group of %s is over: %s", self._envelope, error)

    def _error_of(self, error: Any) -> SoftsError:
        codes = self._grpc.StatusCode
        code, text = error.code(), error.details() or "no reason given"
        if code in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.INVALID_ARGUMENT):
            return ConfigError(f"rank 0 at {self._address} refuses this rank: {text}")
        if code == codes.UNIMPLEMENTED:
            return ConfigError(
                f"rank 0 at {self._address} has no {SERVICE}; install the same version of softs-fast on all ranks"
            )
        if code == codes.FAILED_PRECONDITION:
            return PeerLost(f"rank 0 at {self._address} refuses this rank: {text}")
        if self._root is None and (problem := certificate_problem(error, self._address, self._credentials)):
            return ConfigError(f"no connection to {self.named(0)}: {problem}")
        return PeerLost(f"{self.named(0)} is lost: {text}")
