"""The threads that speak to ranks of other hosts, beside the training."""

from __future__ import annotations

import atexit
import itertools
import logging
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Future, wait
from contextlib import suppress

import torch
from torch import Tensor

from softs_fast.averaging.decide import Member
from softs_fast.averaging.hosts.channel import Channel
from softs_fast.averaging.hosts.correspondent import WANTED_S, Correspondent, Letter
from softs_fast.averaging.hosts.messages import MESSAGES, Ask, Message, Offer, Refuse, SentHeader, Want
from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import NotFinite, PeerLost, SegmentError, SoftsError, WireError
from softs_fast.snapshots import Fetched, Header, RemoteWindow, SnapshotLayout, Window, fetch

logger = logging.getLogger(__name__)

# While no version is on its way the thread of messages takes at most this share of a core.
_IDLE_SHARE = 0.005
_MAX_MANIFEST_BYTES = 1 << 24
# Transfer and version, after the bytes that they name.
_SEAL = struct.Struct("<QQ")


class Unavailable(Exception):
    """A donor has no version to give.

    Args:
        rank: Rank of the donor.
        reason: Reason, as text.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank


class Courier:
    """Speaks to the ranks of other hosts: shows them this rank's header, sends them its versions, and reads theirs.

    A thread for messages looks for them every `poll_interval_s`, or more seldom if that takes much of a core; each
    version that is sent has a thread while that lasts. They need nothing of the training thread.

    Args:
        rank: This rank's number.
        digests: Digest of the layout of each rank of other hosts, by rank.
        window: Window in which this rank publishes its versions.
        channel: Channel to those ranks; closed with the courier.
        poll_interval_s: Seconds from one look for messages to the next.
        as_is: Names of tensors that may have any values.
    """

    def __init__(
        self,
        rank: int,
        digests: Mapping[int, bytes],
        window: Window,
        channel: Channel,
        poll_interval_s: float,
        *,
        as_is: Set[str] = frozenset(),
    ) -> None:
        self._rank = rank
        self._digests = dict(digests)
        self._layout = window.layout
        self._manifests: dict[int, bytes] = {}
        self._channel = channel
        self._poll_interval_s = poll_interval_s
        # As others see it: versions that are copied are not yet there.
        self._own = RemoteWindow.open(window.address)
        self._copies = _Copies(self._own, window.layout, as_is)
        # Guards the three below, and what ranks have said.
        self._lock = threading.Lock()
        self._reports: tuple[Report, ...] = ()
        self._outbox: list[Letter] = []
        # By transfer, the rank that is to answer, and its answer.
        self._awaited: dict[int, tuple[int, Future[Offer | Refuse]]] = {}
        self._correspondent = Correspondent(digests, time.monotonic())
        self._transfers = itertools.count(secrets.randbits(32))
        self._wake = threading.Event()
        self._is_closing = False
        self._serving: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="softs-averaging-hosts", daemon=True)
        # Before a library ends MPI, at the exit of the process.
        atexit.register(self.close)
        self._thread.start()

    def members(self) -> list[Member]:
        """Return the ranks of other hosts that have not left, as known now."""
        now_s = time.monotonic()
        with self._lock:
            known = self._correspondent
            seen = [
                (rank, known.is_alive(rank, now_s), known.header(rank), known.reports(rank))
                for rank in known.ranks()
                if not known.has_left(rank)
            ]
        return [
            Member(
                rank, is_alive, header.version, header.trained, header.metric, self._digests[rank], reports
            )
            for rank, is_alive, header, reports in seen
        ]

    def report(self, report: Report) -> None:
        """Show a report to the ranks of other hosts."""
        with self._lock:
            self._reports = (*self._reports, report)[-MAX_REPORTS:]
        self._wake.set()

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks for newer versions than those that they have shown."""
        with self._lock:
            self._outbox += [(rank, Ask(self._correspondent.header(rank).version)) for rank in ranks]
        self._wake.set()

    def is_asked(self) -> bool:
        """Return whether a rank of another host wants a newer version than the last one."""
        version = self._own.header().version
        with self._lock:
            return self._correspondent.is_asked(version)

    def difference(self, rank: int) -> str:
        """Return in words how the tensors of another rank differ from this rank's, as far as it is known."""
        manifest = self._manifests.get(rank)
        if manifest is None:
            return f"the digest of its tensors is {self._digests[rank].hex()[:16]}, here {self._layout.digest.hex()[:16]}"
        try:
            return self._layout.difference(SnapshotLayout.parse(manifest), "here", f"on rank {rank}")
        except SegmentError as error:
            return str(error)

    def read(self, rank: int, into: Window) -> Header:
        """Receive the newest version of a rank, as a version of a window; return its header. For a helper thread.

        Raises:
            Unavailable: there is none, or the rank has gone, or this courier closes.
        """

        def take(at: int, piece: Tensor) -> None:
            into.write_bytes(piece, at)

        into.begin()
        header = self._receive(rank, False, lambda n_bytes: n_bytes == self._layout.n_bytes, take)
        into.commit(step=header.step, metric=header.metric, trained=header.trained, config=header.config)
        return header

    def read_manifest(self, rank: int) -> None:
        """Receive which tensors a rank has, for `difference`. For a helper thread.

        Raises:
            Unavailable: as for `read`.
        """
        parts: list[bytes] = []

        def take(at: int, piece: Tensor) -> None:
            parts.append(piece.numpy().tobytes())

        self._receive(rank, True, lambda n_bytes: n_bytes <= _MAX_MANIFEST_BYTES, take)
        self._manifests[rank] = b"".join(parts)

    def close(self) -> None:
        """Say farewell, and end the threads within a bounded time; a second call does nothing."""
        self._is_closing = True
        self._wake.set()
        self._thread.join()
        # Not earlier: `is_asked` reads it also when there is no way to other hosts any more.
        self._own.close()
        atexit.unregister(self.close)

    def _receive(
        self,
        rank: int,
        is_manifest: bool,
        fits: Callable[[int], bool],
        take: Callable[[int, Tensor], None],
    ) -> Header:
        transfer = next(self._transfers)
        offer = self._offered(rank, Want(transfer, is_manifest))
        header = offer.header.at(time.monotonic())
        if not fits(offer.n_bytes):
            raise Unavailable(rank, f"it offers {offer.n_bytes} bytes; this rank has {self._layout.n_bytes}")
        seal: list[bytes] = []
        try:
            stream = self._channel.stream(rank, self._rank, transfer)
            try:
                stream.receive(offer.n_bytes, take)
                stream.receive(_SEAL.size, lambda at, piece: seal.append(piece.numpy().tobytes()))
            finally:
                stream.close()
            if b"".join(seal) != _SEAL.pack(transfer, header.version):
                raise PeerLost(f"rank {rank} has sent bytes of another version than it offered")
        except PeerLost as error:
            with self._lock:
                self._correspondent.failed(rank)
            raise Unavailable(rank, str(error)) from error
        with self._lock:
            self._correspondent.received(rank)
        return header

    def _offered(self, rank: int, want: Want) -> Offer:
        """Say what is wanted, and wait for the answer as long as the rank is there."""
        answer: Future[Offer | Refuse] = Future()
        with self._lock:
            self._awaited[want.transfer] = rank, answer
            self._outbox.append((rank, want))
        self._wake.set()
        give_up_s = time.monotonic() + WANTED_S
        try:
            while not wait([answer], self._poll_interval_s).done:
                if self._is_closing:
                    raise Unavailable(rank, "this rank closes")
                now_s = time.monotonic()
                with self._lock:
                    is_alive = self._correspondent.is_alive(rank, now_s)
                if not is_alive:
                    raise Unavailable(rank, "it says nothing any more")
                if now_s > give_up_s:
                    raise Unavailable(rank, f"it has not answered within {WANTED_S:g} s")
        finally:
            with self._lock:
                del self._awaited[want.transfer]
        said = answer.result()
        if isinstance(said, Offer):
            return said
        raise Unavailable(
            rank, "it has no version that is whole" if said.is_finite else "a weight of it is not finite"
        )

    def _run(self) -> None:
        with self._lock:
            self._outbox += self._correspondent.greet()
        try:
            cpu_s = time.thread_time()
            while not self._is_closing:
                self._exchange(time.monotonic())
                before_s, cpu_s = cpu_s, time.thread_time()
                is_busy = self._awaited or self._serving
                pause_s = 0.0 if is_busy else (cpu_s - before_s) / _IDLE_SHARE
                self._wake.wait(max(self._poll_interval_s, pause_s))
                self._wake.clear()
            with suppress(PeerLost):
                self._send(self._correspondent.farewell())
        except PeerLost as error:
            logger.warning("rank %d has no way to other hosts any more: %s", self._rank, error)
            with self._lock:
                for rank in self._correspondent.ranks():
                    self._correspondent.give_up(rank)
        finally:
            self._channel.close()
            for thread in list(self._serving):
                thread.join()

    def _exchange(self, now_s: float) -> None:
        """Send and receive what there is, and begin what is wanted."""
        for rank, said in self._channel.receive():
            if isinstance(said, PeerLost):
                self._lose(rank, said)
                continue
            try:
                self._hear(rank, MESSAGES.decode(said), now_s)
            except WireError as error:
                self._lose(rank, error)
        own = self._own.header()
        with self._lock:
            letters, self._outbox = self._outbox, []
            letters += self._correspondent.tell(own, self._reports, now_s)
            wanted = self._correspondent.next_to_serve(now_s)
        self._send(letters)
        if wanted is not None:
            thread = threading.Thread(
                target=self._serve, args=wanted, name="softs-averaging-donor", daemon=True
            )
            self._serving.add(thread)
            thread.start()

    def _hear(self, rank: int, message: Message, now_s: float) -> None:
        with self._lock:
            self._outbox += self._correspondent.hear(rank, message, now_s)
            if isinstance(message, Offer | Refuse):
                awaited, answer = self._awaited.get(message.transfer, (None, Future()))
                if awaited == rank and not answer.done():
                    answer.set_result(message)

    def _send(self, letters: Iterable[Letter]) -> None:
        for rank, message in letters:
            with self._lock:
                if self._correspondent.has_left(rank):
                    continue
            try:
                self._channel.send(rank, MESSAGES.encode(message))
            except PeerLost as error:
                self._lose(rank, error)

    def _lose(self, rank: int, why: Exception) -> None:
        logger.warning("rank %d of another host is given up: %s", rank, why)
        with self._lock:
            self._correspondent.give_up(rank)

    def _serve(self, rank: int, want: Want) -> None:
        """Send a version to a rank, from a copy that nothing changes."""
        try:
            if want.is_manifest:
                header = self._own.header()
                memory = torch.frombuffer(bytearray(self._layout.manifest), dtype=torch.uint8)
            else:
                copy = self._copies.newest()
                if copy is None:
                    self._post(rank, Refuse(want.transfer, True))
                    return
                header, memory = copy.headers[0], copy.memory
            sent = SentHeader.of(header, time.monotonic())
            self._post(rank, Offer(want.transfer, len(memory), sent))
            stream = self._channel.stream(self._rank, rank, want.transfer)
            try:
                stream.send(memory)
                seal = _SEAL.pack(want.transfer, header.version)
                stream.send(torch.frombuffer(bytearray(seal), dtype=torch.uint8))
            finally:
                stream.close()
        except NotFinite:
            self._post(rank, Refuse(want.transfer, False))
        except SoftsError as error:
            logger.info("rank %d did not take what it wanted: %s", rank, error)
        finally:
            with self._lock:
                self._correspondent.served(rank)
            self._serving.discard(threading.current_thread())
            self._wake.set()

    def _post(self, rank: int, message: Message) -> None:
        with self._lock:
            self._outbox.append((rank, message))
        self._wake.set()


class _Copies:
    """Private copies of a window's newest version; those that are in use are shared."""

    def __init__(self, window: RemoteWindow, layout: SnapshotLayout, as_is: Set[str]) -> None:
        self._window = window
        self._layout = layout
        self._as_is = as_is
        self._last: weakref.ref[Fetched] | None = None
        self._lock = threading.Lock()

    def newest(self) -> Fetched | None:
        """Return a copy, whole and finite; None if there is none.

        Raises:
            NotFinite: a weight is infinite or NaN.
        """
        with self._lock:
            last = self._last() if self._last is not None else None
            if last is not None and last.headers[0].version == self._window.header().version:
                return last
            copy = fetch([self._window], [1.0], self._layout, as_is=self._as_is)
            self._last = weakref.ref(copy) if copy is not None else None
            return copy
