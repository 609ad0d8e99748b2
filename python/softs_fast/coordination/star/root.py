"""The server of rank 0: it gives each other rank its place, and passes on what the ranks send."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

from ...collectives import in_thread
from ...errors import ConfigError, PeerLost, WireError
from ...process import raise_descriptor_limit
from ...repeated_log import RepeatedLog
from ...trust import Address
from ..requirements import import_grpc
from ..server.door import listen, server_options
from ..server.guard import Denied, Guard
from .calls import AHEAD, RootCalls
from .mailboxes import Mailboxes
from .messages import (
    MAX_OVERHEAD_BYTES,
    METHOD,
    PROTOCOL,
    SERVICE,
    Envelope,
    Join,
    Late,
    Leave,
    Part,
    StarProcess,
    Welcome,
    decode,
    encode,
)
from .options import Epoch, StarOptions

__all__ = ["Root"]

#: Streams at once beyond those of the ranks: of processes that are about to be refused.
_MORE_STREAMS = 16
#: A stream must say what it is within so many seconds.
_PATIENCE_S = 10.0
#: How long streams may take to deliver why the group is over.
_LAST_WORDS_S = 1.0


class Root:
    """Rank 0: it listens, and reduces.

    gRPC's server with threads, not that of asyncio: a process that trains may fork, as a DataLoader does, and both are as
    fast for few ranks.

    Args:
        size: Number of ranks.
        epoch: Epoch of the group.
        options: Options of the star.
        timeout_s: Seconds to wait for a piece of a rank.
        logger: Logger that is told which processes take part, and which are refused.

    Attributes:
        calls: Calls of rank 0.
        boxes: Mailboxes for the messages from and to the other ranks.
        n_refused: Number of processes that were refused.

    Raises:
        EndpointInUse: another process listens at the address.
        ConfigError: gRPC is not installed, or a file of the credentials cannot be read.
    """

    def __init__(
        self, size: int, epoch: Epoch, options: StarOptions, timeout_s: float, logger: logging.Logger
    ) -> None:
        self._grpc = import_grpc()
        self._size = size
        self._epoch = epoch
        self._options = options
        self._envelope = Envelope(epoch.boot, epoch.number, 0)
        self._logger = logger
        self._process = StarProcess.this(epoch.workers[0] if epoch.workers else "")
        self._lock = threading.Lock()
        self._joined: dict[int, Join] = {}
        self.n_refused = 0
        self._refusing, self._refusals = threading.Lock(), RepeatedLog(logger)
        self._is_closing = False
        self.boxes = Mailboxes(range(1, size), 0, AHEAD)
        self.calls = RootCalls(self._envelope, size, self.boxes, self.named, timeout_s)
        raise_descriptor_limit()
        self._server: Any = self._grpc.server(
            _DaemonThreads(),
            options=server_options(options.pings, options.piece_bytes + MAX_OVERHEAD_BYTES, 2),
            maximum_concurrent_rpcs=size + _MORE_STREAMS,
        )
        self.port = listen(
            self._server,
            Address.parse(options.listen, "rank 0"),
            options.server.grpc_server(logger),
            "rank 0 cannot listen at {}: another process does, or the address is not of this machine; port 0 takes a free one",
        )
        self._guard = Guard(options.server, self.port, "rank 0")
        handler = self._grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            (self._grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        self._server.start()

    @property
    def address(self) -> str:
        """Where the other ranks reach it."""
        return self._options.advertised(self.port)

    def give_up(self, reason: str) -> None:
        """End all calls, also those of the other ranks. Idempotent."""
        self.calls.give_up(reason)

    def close(self) -> None:
        """Leave the group, after all results are sent. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        is_over = self.boxes.error is not None
        self._is_closing = True
        for rank in range(1, self._size):
            self.boxes.close_box(rank)
        # Of a group that is over only the reason is left to be sent; a rank that is stopped takes it too late.
        ended = server.stop(_LAST_WORDS_S if is_over else self.calls.timeout_s)
        if not is_over:
            ended.wait()
        self.boxes.end(PeerLost("the group is closed"))

    def named(self, rank: int) -> str:
        """Return a rank with its process, and what has become of it."""
        if rank == 0:
            return f"rank 0 ({self._process})"
        join = self._joined.get(rank)
        if join is None:
            worker = f', worker "{self._epoch.workers[rank]}"' if self._epoch.workers else ""
            return f"rank {rank} (which has not joined{worker})"
        state = join.process.state
        return f"rank {rank} ({join.process}{f', which {state}' if state else ''})"

    # --- In the threads of gRPC ---

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve one stream."""
        codes = self._grpc.StatusCode
        joined: futures.Future[int] = futures.Future()
        try:
            identity = self._guard.worker(context)
        except Denied as error:
            self._refuse(context, str(error))
            context.abort(codes.UNAUTHENTICATED if error.is_unknown else codes.PERMISSION_DENIED, str(error))
        reader = threading.Thread(
            target=self._read, args=(requests, identity, joined), name="softs-star", daemon=True
        )
        reader.start()
        try:
            rank = joined.result(_PATIENCE_S)
        except ConfigError as error:
            self._refuse(context, str(error))
            context.abort(codes.INVALID_ARGUMENT, str(error))
        except (PeerLost, WireError) as error:
            self._refuse(context, str(error))
            context.abort(codes.FAILED_PRECONDITION, str(error))
        except TimeoutError:
            context.abort(codes.DEADLINE_EXCEEDED, f"no Join came within {_PATIENCE_S:g} s")
        yield encode(self._envelope, Welcome(self._process))
        yield from self.boxes.outgoing(rank)

    def _refuse(self, context: Any, reason: str) -> None:
        peer = str(context.peer())
        with self._refusing:
            self.n_refused += 1
            self._refusals.log(logging.WARNING, peer.rpartition(":")[0], f"refused {peer}: {reason}")

    def _read(self, requests: Iterator[bytes], identity: str | None, joined: futures.Future[int]) -> None:
        """Read a stream to its end, in a thread of its own."""
        has_left = False
        try:
            rank = self._join(*decode(next(requests)), identity)
        except StopIteration:
            joined.set_exception(WireError("the stream has ended before its Join"))
            return
        except Exception as error:
            # gRPC raises nothing more exact than Exception when the stream is broken.
            joined.set_exception(error)
            return
        joined.set_result(rank)
        self._logger.info("%s has joined %s", self.named(rank), self._envelope)
        try:
            for data in requests:
                has_left = self._received(rank, *decode(data)) or has_left
        except WireError as error:
            self._logger.warning("%s", error)
            self.calls.end(f"{self.named(rank)} breaks the protocol: {error}")
        except Exception:
            self._logger.debug("the stream of rank %d is broken", rank, exc_info=True)
        if not has_left and not self._is_closing:
            self.calls.end(
                f"{self.named(rank)} is lost: its connection has ended, or it does not answer pings"
            )

    def _join(self, envelope: Envelope, message: object, identity: str | None) -> int:
        """Give a process the place of a rank.

        Raises:
            WireError: its first message is none that asks for it, or there is no such rank.
            ConfigError: it expects another group than this one, or has another identity than the rank.
            PeerLost: it is of another epoch, the place is taken, or the group is over.
        """
        if not isinstance(message, Join):
            raise WireError(f"the first message of a rank is Join, not {type(message).__name__}")
        rank, process = envelope.rank, message.process
        if (envelope.boot, envelope.epoch) != (self._epoch.boot, self._epoch.number):
            raise PeerLost(f"rank {rank} ({process}) is of {envelope}; this group is of {self._envelope}")
        if not 0 < rank < self._size:
            raise WireError(f"{process} joins as rank {rank}; this group has the ranks 1 to {self._size - 1}")
        have, need = (
            (message.size, message.piece_bytes, message.protocol),
            (self._size, self._options.piece_bytes, PROTOCOL),
        )
        if have != need:
            raise ConfigError(
                f"rank {rank} ({process}) expects {have[0]} ranks, pieces of {have[1]} bytes and protocol {have[2]}; "
                f"rank 0 has {need[0]}, {need[1]} and {need[2]}: give all ranks the same"
            )
        if self._epoch.workers and identity not in (None, self._epoch.workers[rank]):
            raise ConfigError(
                f'"{identity}" joins as rank {rank}, which is of worker "{self._epoch.workers[rank]}"'
            )
        if self.boxes.error is not None:
            raise PeerLost(f"the group is over: {self.boxes.error}")
        with self._lock:
            before = self._joined.setdefault(rank, message)
        if before is not message:
            raise PeerLost(f"{process} joins as rank {rank}, which is taken by {before.process}")
        return rank

    def _received(self, rank: int, envelope: Envelope, message: object) -> bool:
        """Take a message of a rank; return whether it has left."""
        if envelope != Envelope(self._epoch.boot, self._epoch.number, rank):
            raise WireError(
                f"a message of rank {envelope.rank} of {envelope} came on the stream of rank {rank} of {self._envelope}"
            )
        match message:
            case Part():
                self.calls.came(rank, message)
            case Late():
                self.calls.late(message)
            case Leave():
                self.calls.left(rank, message)
                return True
            case _:
                raise WireError(f"{type(message).__name__} came on a stream that has joined")
        return False


class _DaemonThreads(futures.Executor):
    """Threads that do not keep a process alive, as those of `ThreadPoolExecutor` would if a group is not closed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Call a function in a thread of its own."""
        return in_thread(functools.partial(fn, *args, **kwargs), "softs-star")
