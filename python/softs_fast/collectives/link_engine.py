"""Connections of its own between all ranks of a group, encrypted where there is a token file, as an engine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations, pairwise
from typing import Any, NamedTuple, Self

import torch

from softs_fast import _core
from softs_fast.collectives.engine import Engine
from softs_fast.collectives.reasons import Reasons
from softs_fast.collectives.rendezvous import KeyValueStore, as_rendezvous, store_of
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import plain
from softs_fast.errors import ConfigError, PeerLost, WireError
from softs_fast.kernels import reduce
from softs_fast.tensors import as_plain
from softs_fast.trust import Address, Der, bracketed, check_reachable, is_loopback, jobs_of

# Of a tensor: while one chunk is reduced by the ranks, the results of the one before are spread.
_CHUNK_BYTES = 4 << 20
# Up to here each rank sends all to all, and reduces all: two exchanges would take longer.
_SMALL_BYTES = 64 << 10
#: How long a rank that leaves waits for a host that takes nothing of what it was sent, seconds.
LEAVE_S = 5.0
_LOOPBACK = "127.0.0.1"
_LONGEST_HOST = 64
_REMEDY = (
    "give all ranks a token file (softs-fast keys new FILE) as token_file= or in SOFTS_FAST_TOKEN_FILE, or plain=True on a "
    "network that is trusted"
)

#: Messages of an exchange: for each the other rank, and memory to send or to fill.
Messages = list[tuple[int, Any]]
#: Returns what one chunk sends and receives in one of its phases.
_Phase = Callable[[int], tuple[Messages, Messages]]


class LinkEngine(Engine):
    """A connection for each two ranks.

    Each element is summed once, in the order of the ranks, 16-bit floats in float32 and then rounded, and the sum goes to
    all: all ranks get the same bits, in every run.

    Args:
        mesh: Joined connections; they belong to the engine.
        rank: This process's number.
        size: Number of ranks.
        timeout_s: Seconds that a call waits while no byte comes.
        reasons: Place where a rank that gives up tells the others why; None if there is none.

    Attributes:
        timeout_s: Seconds that a call waits while no byte comes.
        name: Text that the ranks of this group have, and those of no other.
        host: Address of this host at which the others reach it.

    Source: direct reduce-scatter and all-gather, own; see docs/collectives.md.
    """

    def __init__(
        self, mesh: _core.Mesh, rank: int, size: int, timeout_s: float, reasons: Reasons | None = None
    ) -> None:
        super().__init__(rank, size, reasons)
        self._mesh = mesh
        self.timeout_s = timeout_s
        self.name = self.host = ""
        self._processes: list[str] = []
        self._others = [other for other in range(size) if other != rank]
        # What comes from others before it is reduced; kept from call to call.
        self._scratch = torch.empty(0, dtype=torch.uint8, device="cpu")

    @classmethod
    def meet(
        cls,
        rank: int,
        size: int,
        place: object,
        *,
        name: str,
        timeout_s: float,
        connect_timeout_s: float | None = None,
        host: str | None = None,
        credentials: Der | None = None,
        plain: bool = False,
    ) -> Self:
        """Connect all ranks.

        Args:
            rank: This process's number.
            size: Number of ranks.
            place: Place where the ranks meet, as for `as_rendezvous`.
            name: Name that distinguishes groups that use the same place.
            timeout_s: Seconds to wait for the slowest rank, until it comes and in each call.
            connect_timeout_s: Seconds to wait for it while connections are made; None for `timeout_s`.
            host: Address of this host at which the others reach it. None takes the address on the way to the process
                that serves the store; where no process does, loopback.
            credentials: Certificates that all ranks show each other; None connects without encryption.
            plain: Whether other hosts may be reached without encryption.

        Raises:
            ConfigError: the host is reached by other machines, and there are neither credentials nor `plain`; or the
                ranks differ in that, or have different tokens.
            PeerLost: a rank did not join in time, or does not prove that it belongs to the job.
        """
        connect_s = timeout_s if connect_timeout_s is None else connect_timeout_s
        meeting = as_rendezvous(place, rank, size, name=name, timeout_s=connect_s)
        store = store_of(meeting)
        try:
            mesh = listen(store, name, host=host, credentials=credentials, plain=plain)
        except ConfigError as error:
            # Else the others would wait for this rank.
            with suppress(PeerLost):
                meeting.exchange(Offer("", b"", False, str(error)).text(), timeout_s)
            raise
        shown = (
            credentials is not None,
            f"process {os.getpid()} on {platform.node()[:_LONGEST_HOST]}",
            jobs_of(credentials),
        )
        try:
            own = Offer(mesh.endpoint, mesh.key, *shown)
            offers = [Offer.parse(said) for said in meeting.exchange(own.text(), timeout_s)]
            for number, offer in enumerate(offers):
                if not offer.endpoint:
                    raise ConfigError(f"rank {number} does not take part: {offer.process}")
            others = [offer for offer in offers if not offer.is_on_loopback]
            if 0 < len(others) < size:
                # On the host of the store its name may stand for loopback.
                if host is None and own.is_on_loopback and (own.proves or plain):
                    mesh.shut_down()
                    host = Address.parse(others[0].endpoint, "a rank", "tcp://").own_side()
                    mesh = listen(store, name, host=host, credentials=credentials, plain=plain)
                    own = Offer(mesh.endpoint, mesh.key, *shown)
                offers = [Offer.parse(said) for said in meeting.exchange(own.text(), timeout_s)]
            _check_alike(offers)
            mesh.join(rank, [(offer.endpoint, offer.key) for offer in offers], connect_s)
        except BaseException as error:
            mesh.shut_down()
            if isinstance(error, PeerLost):
                raise PeerLost(f'no connections among the {size} ranks of "{name}": {error}') from error
            raise
        group = hashlib.blake2b(b"".join(offer.key for offer in offers), digest_size=8).hexdigest()
        # All are connected, so all have read what is in the store.
        meeting.close()
        engine = cls(mesh, rank, size, timeout_s, None if store is None else Reasons(store, group))
        engine.name, engine.host = group, own.host
        engine._processes = [offer.process for offer in offers]
        return engine

    @property
    def ended(self) -> list[int]:
        """Ranks that have ended, or left the group."""
        return list(self._mesh.ended)

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send messages and fill others, all at once; inside `call`.

        Args:
            sends: Rank and contiguous memory of each message. Those to one rank arrive in their order.
            receives: Rank and contiguous memory of each message that comes, of exactly its bytes. Empty memory is skipped,
                here and in `sends`.

        Raises:
            PeerLost: a rank is lost, or nothing came in time.
        """
        self._check_usable()
        self._mesh.exchange(sends, receives, self.timeout_s)

    def drain(self) -> None:
        """Wait until the hosts of the other ranks have all that was sent; it may be lost if the connections end before."""
        self._mesh.drain(LEAVE_S)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, of one size, by rank; the own one may be the argument itself."""
        own = as_plain(tensor).detach()
        every = [own if rank == self.rank else torch.empty_like(own) for rank in range(self.size)]
        self._spread(own, every)
        return every

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank, one after another, into `output`; the own one may be there already."""
        with _flat(output) as flat:
            parts = list(flat.view(self.size, flat.numel() // self.size))
            parts[self.rank].copy_(tensor.detach().reshape(-1))
            self._spread(parts[self.rank], parts)

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        """Reduce in place."""
        with _flat(tensor) as flat:
            if self.size == 1 or not flat.numel():
                return
            if flat.nbytes <= _SMALL_BYTES:
                rows = self._rows(flat)
                self.exchange(self._to_others(flat), self._from_others(rows))
                self._reduce(rows, flat, flat, op)
                return
            chunks = _sliced(flat, self.size)

            def scatter(number: int) -> tuple[Messages, Messages]:
                slices = chunks[number]
                sends = [(other, memory_of(slices[other])) for other in self._others]
                return sends, self._from_others(self._rows(slices[self.rank]))

            def reduce_own(number: int) -> None:
                own = chunks[number][self.rank]
                self._reduce(self._rows(own), own, own, op)

            def spread(number: int) -> tuple[Messages, Messages]:
                slices = chunks[number]
                receives = [(other, memory_of(slices[other])) for other in self._others]
                return self._to_others(slices[self.rank]), receives

            self._in_two_phases(len(chunks), scatter, spread, reduce_own)

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, bounds: Sequence[int], op: ReduceOp
    ) -> None:
        """Reduce a tensor; each rank gets its slice."""
        whole = as_plain(tensor).detach().view(-1)
        parts = [whole[begin:end] for begin, end in pairwise(bounds)]
        step = max(1, _CHUNK_BYTES // (self.size * whole.element_size()))
        with _flat(output) as flat:
            for begin in range(0, max(part.numel() for part in parts), step):
                pieces = [part[begin : begin + step] for part in parts]
                own = pieces[self.rank]
                rows = self._rows(own)
                sends = [(other, memory_of(pieces[other])) for other in self._others]
                self.exchange(sends, self._from_others(rows))
                self._reduce(rows, own, flat[begin : begin + step], op)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Copy the tensor of rank `root` to every rank: a large one by way of the others, of which each passes a slice on."""
        with _flat(tensor) as flat:
            if self.size <= 2 or flat.nbytes <= _SMALL_BYTES:
                if self.rank == root:
                    self.exchange(self._to_others(flat), [])
                else:
                    self.exchange([], [(root, memory_of(flat))])
                return
            receivers = [rank for rank in range(self.size) if rank != root]
            chunks = [
                dict(zip(receivers, map(memory_of, slices), strict=True))
                for slices in _sliced(flat, len(receivers))
            ]

            def scatter(number: int) -> tuple[Messages, Messages]:
                if self.rank == root:
                    return list(chunks[number].items()), []
                return [], [(root, chunks[number][self.rank])]

            def spread(number: int) -> tuple[Messages, Messages]:
                if self.rank == root:
                    return [], []
                own = chunks[number][self.rank]
                others = [rank for rank in receivers if rank != self.rank]
                return [(other, own) for other in others], [
                    (other, chunks[number][other]) for other in others
                ]

            self._in_two_phases(len(chunks), scatter, spread)

    def _end(self) -> None:
        self._mesh.shut_down()

    def _release(self) -> None:
        try:
            self.drain()
        finally:
            self._mesh.shut_down()
        self._scratch = self._scratch[:0].clone()

    def _loss(self, error: Exception) -> tuple[list[int], str]:
        lost = list(self._mesh.lost)
        known = [f"; rank {rank} was {self._processes[rank]}" for rank in lost if self._processes]
        return lost, "".join([str(error), *known])

    def _in_two_phases(
        self, n_chunks: int, first: _Phase, second: _Phase, between: Callable[[int], None] | None = None
    ) -> None:
        """Exchange the first phase of each chunk together with the second one of the chunk before it.

        Args:
            n_chunks: Number of chunks.
            first: First phase.
            second: Second phase.
            between: Function called between both.
        """
        sends: Messages = []
        receives: Messages = []
        for number in range(n_chunks):
            more = first(number)
            self.exchange(more[0] + sends, more[1] + receives)
            if between is not None:
                between(number)
            sends, receives = second(number)
        self.exchange(sends, receives)

    def _spread(self, own: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        """Send the own part to all others, and receive theirs."""
        self.exchange(self._to_others(own), [(other, memory_of(parts[other])) for other in self._others])

    def _to_others(self, tensor: torch.Tensor) -> Messages:
        memory = memory_of(tensor)
        return [(other, memory) for other in self._others]

    def _from_others(self, rows: Iterable[torch.Tensor]) -> Messages:
        return [(other, memory_of(row)) for other, row in zip(self._others, rows, strict=True)]

    def _rows(self, like: torch.Tensor) -> list[torch.Tensor]:
        """Return memory for a tensor of each other rank, the same until a larger one is asked for."""
        n_bytes = len(self._others) * like.nbytes
        if self._scratch.nbytes < n_bytes:
            self._scratch = torch.empty(n_bytes, dtype=torch.uint8, device="cpu")
        return list(self._scratch[:n_bytes].view(like.dtype).view(len(self._others), like.numel()))

    def _reduce(
        self, rows: list[torch.Tensor], own: torch.Tensor, output: torch.Tensor, op: ReduceOp
    ) -> None:
        """Reduce the rows of the other ranks and the own one, in the order of the ranks."""
        if own.numel():
            reduce([*rows[: self.rank], own, *rows[self.rank :]], output, op)


class Offer(NamedTuple):
    """What a rank tells the others.

    Attributes:
        endpoint: Where it listens.
        key: Bytes that they show it.
        proves: Whether it shows certificates.
        process: Its process and its host, for texts; without an endpoint why it has none.
        tokens: What tells its tokens from others, as a certificate does; empty if they are not known.
    """

    endpoint: str
    key: bytes
    proves: bool
    process: str = ""
    tokens: Sequence[str] = ()

    @classmethod
    def parse(cls, said: bytes) -> Self:
        """Read the text of another rank."""
        try:
            endpoint, key, proves, process, tokens = json.loads(said)
            return cls(
                str(endpoint), bytes.fromhex(key), bool(proves), str(process), [str(one) for one in tokens]
            )
        except (ValueError, TypeError) as error:
            raise WireError(f"a rank tells no endpoint: {error}") from None

    @property
    def host(self) -> str:
        """Host of the endpoint."""
        return Address.split(self.endpoint, "a rank", "tcp://")[0]

    @property
    def is_on_loopback(self) -> bool:
        """Whether other hosts cannot reach it."""
        return is_loopback(self.host)

    def text(self) -> bytes:
        """Return the text for other ranks."""
        return json.dumps([self.endpoint, self.key.hex(), *self[2:]]).encode()


def listen(
    store: KeyValueStore | None,
    name: str,
    *,
    host: str | None = None,
    credentials: Der | None = None,
    plain: bool = False,
) -> _core.Mesh:
    """Return a mesh of this rank that is not joined; the arguments are those of `LinkEngine.meet`.

    Raises:
        ConfigError: other machines reach it, and nothing protects it; or no rank could connect to it.
    """
    return _core.Mesh(_endpoint(host or _own_side(store), name, credentials, plain), credentials, plain)


def memory_of(tensor: torch.Tensor) -> Any:
    """Return the memory of a contiguous tensor of the host, as a buffer of bytes."""
    return tensor.view(-1).view(torch.uint8).numpy()


@contextmanager
def _flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor of one dimension in host memory: a view of another one, or a copy that is copied back."""
    with plain([tensor]) as (lent,):
        yield lent.detach().view(-1)


def _sliced(flat: torch.Tensor, n_slices: int) -> list[tuple[torch.Tensor, ...]]:
    """Return the slices of each chunk, of almost equal size."""
    chunks = torch.split(flat, _CHUNK_BYTES // flat.element_size())
    return [torch.tensor_split(chunk, n_slices) for chunk in chunks]


def _own_side(store: KeyValueStore | None) -> str:
    server = None if store is None else store.server
    if server is None:
        return _LOOPBACK
    host, port = server
    return Address.parse(f"{bracketed(host)}:{port}", "rendezvous").own_side()


def _endpoint(host: str, name: str, credentials: Der | None, plain: bool) -> str:
    """Return where to listen.

    Raises:
        ConfigError: other machines reach it, and nothing protects it; or no rank could connect to it.
    """
    what = f'a rank of group "{name}"'
    address = Address.parse(f"{bracketed(host)}:0", what)
    if address.is_unspecified:
        raise ConfigError(
            f"host of {what} is {host}; give an address of this host at which the other ranks reach it"
        )
    proves = credentials is not None
    check_reachable(address, what, tls=proves, proof=proves, insecure=plain, remedy=_REMEDY)
    return f"tcp://{bracketed(address.numeric[0])}:0"


def _check_alike(offers: Sequence[Offer]) -> None:
    """Raise ConfigError, on all ranks, unless all show certificates, or none, and all are on loopback, or none.

    A rank that refuses a connection cannot tell whether a stranger has made it, so it would wait for a rank with another
    token until its time is over: tokens are compared here, too.
    """
    for what, remedy, found in (
        ("has a token file", _REMEDY, [offer.proves for offer in offers]),
        (
            "listens on loopback",
            "give each host=, its address on the network of all",
            [offer.is_on_loopback for offer in offers],
        ),
    ):
        if len(set(found)) > 1:
            raise ConfigError(
                f"rank {found.index(True)} {what}, and rank {found.index(False)} does not; {remedy}"
            )
    for (one, ours), (other, theirs) in combinations(enumerate(offers), 2):
        if ours.tokens and theirs.tokens and set(ours.tokens).isdisjoint(theirs.tokens):
            raise ConfigError(
                f"rank {one} ({ours.process}) and rank {other} ({theirs.process}) have different tokens; give all ranks "
                "the same token file (softs-fast keys show FILE prints what tells them apart)"
            )
