"""A `torch.distributed.Store` that checks the token of the job, and `init_process_group(init_method="softs://...")` by it."""

from __future__ import annotations

import ipaddress
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Timer
from typing import Self, TypeVar

from torch.distributed import PrefixStore, Store, register_rendezvous_handler

from softs_fast import _core
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.trust import Address, Der, Place, TlsFiles, bracketed, check_reachable

__all__ = ["LinkStore", "StoreServer"]

#: Most bytes of all keys and values.
_MOST_BYTES = 256 << 20
# As docs/wire.md has it.
_MOST_KEY_BYTES, _MOST_VALUE_BYTES = 4 << 10, 1 << 20
#: Name of the service in a place.
_WHAT = "ranks"
_STORE = "the store of the ranks"
_REMEDY = (
    "give all ranks the token file of the job (softs-fast keys new FILE), as softs://HOST?token_file=FILE or in "
    "SOFTS_FAST_TOKEN_FILE"
)
#: A rank says then what it waits for, seconds.
_TELL_S = 10.0

logger = logging.getLogger(__name__)

_Reply = TypeVar("_Reply", bytes, int, bool)


class StoreServer:
    """Keys and values in this process, for `LinkStore`s of all ranks. A thread serves them without the GIL.

    Args:
        host: Host of this machine at which to listen.
        port: Port; 0 for any that is free.
        credentials: What both ends show each other, as `TlsFiles.der` returns it; None for processes of this user on this
            host.

    Attributes:
        address: Numeric host and port at which it listens.

    Raises:
        ConfigError: The host is not known or none of this machine, or other machines could connect and there are no credentials.
        EndpointInUse: A process listens there.
    """

    def __init__(self, host: str, port: int = 0, *, credentials: Der | None = None) -> None:
        own = Address.parse(f"{bracketed(host)}:{port}", _WHAT)
        if credentials is None:
            check_reachable(own, _STORE, remedy=_REMEDY)
        # Debian gives the name of a machine an address of loopback.
        is_hidden = credentials is not None and own.is_loopback and _is_name(host) and host != "localhost"
        listen = "*" if is_hidden else bracketed(own.numeric[0])
        self._server: _core.StoreServer | None = None
        try:
            self._server = _core.StoreServer(f"tcp://{listen}:{port}", credentials, _MOST_BYTES)
        except PeerLost as error:
            raise ConfigError(f"cannot listen at {host} for {_WHAT}: {error}") from None
        self.address = Address.split(self._server.endpoint, _WHAT, "tcp://")

    def close(self) -> None:
        """End all connections; the calls of other processes raise PeerLost. A second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.close()


class LinkStore(Store):
    """A store in the process of one rank: with the token file of the job others of several hosts reach it, encrypted.

    All calls raise PeerLost when that process has ended, or does not answer in time. torch keeps no reference to a store in
    Python: keep one as long as groups use it.

    Args:
        host: Host of the process that serves it.
        port: Its port.
        credentials: What both ends show each other, as `TlsFiles.der` returns it; None for processes of this user on this
            host.
        timeout_s: Seconds to wait until it listens, and in each call.
        server: Server in this process that is to live as long as this store.

    Raises:
        ConfigError: It is on another host, and there are no credentials.
        PeerLost: No store listens there, or it has another token.
    """

    #: That of torch, which its stubs leave out: how long a call waits.
    timeout: timedelta

    def __init__(
        self,
        host: str,
        port: int,
        *,
        credentials: Der | None = None,
        timeout_s: float = 300.0,
        server: StoreServer | None = None,
    ) -> None:
        super().__init__()
        if credentials is None:
            check_reachable(Address.parse(f"{bracketed(host)}:{port}", _WHAT), _STORE, remedy=_REMEDY)
        self.host = host
        self.port = port
        self.credentials = credentials
        self._server = server
        # It has the time-out for both languages: torch sets it from behind a prefix, without a call of Python.
        self.set_timeout(timedelta(seconds=timeout_s))
        self._client = _core.StoreClient(f"tcp://{bracketed(host)}:{port}", credentials, timeout_s)

    @classmethod
    def at(cls, place: str, *, serves: bool, timeout_s: float, files: TlsFiles | None = None) -> Self:
        """Return the store at a place.

        Args:
            place: softs://HOST[:PORT][/JOB][?token_file=FILE].
            serves: Whether this process serves it; others connect to it.
            timeout_s: Seconds to wait until it listens, and in each call.
            files: Token file, or PEM files, that are given beside the place.

        Raises:
            ConfigError: The place or a file cannot be used; the place has several hosts.
            PeerLost: No store listens there, or it has another token.
            EndpointInUse: Another process listens there already.
        """
        host, port, credentials = _found(place, files or TlsFiles())
        server = StoreServer(host, port, credentials=credentials) if serves else None
        if server is not None:
            port = server.address[1]
        return cls(host, port, credentials=credentials, timeout_s=timeout_s, server=server)

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key to a value of 1 MiB at most."""
        self._answered(self._client.set(_key(key), _value(key, value), self._seconds), [key])

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as it is set."""
        return self._answered(self._client.get(_key(key), self._seconds), [key])

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first, and return the sum."""
        return self._answered(self._client.add(_key(key), amount, self._seconds), [key])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it has the expected value, or has none and that is empty; return its value then.

        A key that has none keeps none for any other expected value, and that is returned.
        """
        values = _value(key, expected), _value(key, desired)
        return self._answered(self._client.compare_set(_key(key), *values, self._seconds), [key])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        seconds = self._seconds if timeout is None else _seconds(timeout)
        self._answered(self._client.wait(list(map(_key, keys)), seconds), keys, seconds)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return self._answered(self._client.check(list(map(_key, keys)), self._seconds), keys)

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether there was one."""
        return self._answered(self._client.delete(_key(key), self._seconds), [key])

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return self._answered(self._client.count(self._seconds), [])

    # By these names torch calls them from behind a prefix.
    deleteKey = delete_key
    getNumKeys = num_keys

    def clone(self) -> Self:
        """Return this store: calls that wait hold up no others."""
        return self

    @property
    def _seconds(self) -> float:
        return _seconds(self.timeout)

    def _answered(self, reply: _Reply | None, keys: Sequence[str], seconds: float | None = None) -> _Reply:
        if reply is None:
            named = ", ".join(map(repr, keys)) or "the number of keys"
            waited = self._seconds if seconds is None else seconds
            raise PeerLost(
                f"the store at {self.host}:{self.port} has had nothing for {named} for {waited:.1f} s: a rank "
                "has not come, or the process that serves the store is stopped"
            )
        return reply


def _seconds(timeout: timedelta) -> float:
    # As for torch, which makes a negative one of the longest: a wait without end.
    return timeout.total_seconds() if timeout >= timedelta(0) else math.inf


def _key(key: str) -> bytes:
    found = key.encode()
    if len(found) > _MOST_KEY_BYTES:
        raise ConfigError(f"a key has {len(found)} bytes; a store takes {_MOST_KEY_BYTES} at most")
    return found


def _value(key: str, value: str | bytes) -> bytes:
    found = value.encode() if isinstance(value, str) else bytes(memoryview(value))
    if len(found) > _MOST_VALUE_BYTES:
        raise ConfigError(
            f"the value of {key!r} has {len(found)} bytes; a store takes {_MOST_VALUE_BYTES} at most"
        )
    return found


def _is_name(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return False
    return True


#: Of groups of torch that this process has made by place: what torch keeps no reference to.
_stores: dict[str, LinkStore] = {}
#: By process, as a fork has none, host and port.
_servers: dict[tuple[int, str, int], StoreServer] = {}


def _meet(
    url: str, timeout: timedelta = timedelta(minutes=30), **_: object
) -> Iterator[tuple[Store, int, int]]:
    """Yield store, rank and number of ranks for a place; the handler of `torch.distributed.rendezvous`.

    torch adds rank and number of ranks that it was given to the parameters of the place; else they are those of RANK and
    WORLD_SIZE, and the host of ``softs://`` alone is that of MASTER_ADDR, which torchrun sets. A process that makes one
    group after another serves them by one store. As with TCPStore, rank 0 waits for all others.

    Raises:
        ConfigError: the place or its token file cannot be used, or rank or number of ranks is missing.
        PeerLost: a rank did not come.
    """
    text, rank, size = _split(url)
    host, port, credentials = _found(text, TlsFiles())
    own = os.getpid(), host, port
    if rank == 0 and own not in _servers:
        _servers[own] = StoreServer(host, port, credentials=credentials)
    with _told(lambda: f"rank {rank} waits for rank 0 to serve the store at {bracketed(host)}:{port}"):
        store = LinkStore(host, port, credentials=credentials, timeout_s=timeout.total_seconds())
    _stores[url] = store
    yield PrefixStore(_gather(store, rank, size), store), rank, size
    raise ConfigError("a place of the form softs:// cannot change the number of ranks")


def _gather(store: LinkStore, rank: int, size: int) -> str:
    """Return the prefix of a new group, once all ranks are there.

    Keys of groups before are in the store still, also of those that were given up. A rank that begins anew finds the group
    that is open. No key here has the prefix.
    """
    is_open = f"softs.open/{size}"
    if rank > 0:
        with _told(lambda: f"rank {rank} waits for other ranks; rank 0 says which"):
            group = store.get(is_open).decode()
            own = f"{group}, rank {rank}"
            store.set(own, "")
            try:
                store.wait([f"{group}, all"])
            except BaseException:
                # Else the group would begin with a rank that has given up, and may come again.
                with suppress(PeerLost):
                    store.delete_key(own)
                raise
        return group
    group = f"softs.group/{store.add('softs.groups', 1)}"
    store.set(is_open, group)
    others = {other: f"{group}, rank {other}" for other in range(1, size)}

    def missing() -> str:
        ranks = [str(other) for other, key in others.items() if not store.check([key])]
        return (
            f"rank 0 waits at {bracketed(store.host)}:{store.port} for {len(ranks)} of {size} ranks: {', '.join(ranks)}; "
            "one that has no token of this rank's file ends with an error of its own"
        )

    try:
        with _told(missing):
            while not store.check(list(others.values())):
                for key in others.values():
                    store.wait([key])
    finally:
        store.delete_key(is_open)
    store.set(f"{group}, all", "")
    return group


@contextmanager
def _told(text: Callable[[], str]) -> Iterator[None]:
    """Log what this rank waits for, if that takes long."""

    def tell() -> None:
        with suppress(PeerLost):
            logger.warning("%s", text())

    timer = Timer(_TELL_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _found(place: str, files: TlsFiles) -> tuple[str, int, Der | None]:
    """Return host, port and credentials of a place."""
    parsed = Place.parse(place, _WHAT)
    host, port = Address.split(parsed.only_address(_WHAT, "rank 0 serves the store"), _WHAT)
    return host, port, parsed.credentials_or(files).der()


def _split(url: str) -> tuple[str, int, int]:
    """Return the place, rank and number of ranks."""
    shown, _, query = url.partition("?")
    # torch leaves out what is empty.
    if shown in ("softs:", "softs://"):
        host = os.environ.get("MASTER_ADDR")
        if not host:
            raise ConfigError(f"{url} has no host, and MASTER_ADDR is not set; give softs://HOST of rank 0")
        shown = f"softs://{host if _is_name(host) else bracketed(host)}"
    found = {"rank": os.environ.get("RANK"), "world_size": os.environ.get("WORLD_SIZE")}
    others = []
    for parameter in query.split("&") if query else ():
        name, _, value = parameter.partition("=")
        if name in found:
            found[name] = value
        else:
            others.append(parameter)
    numbers = []
    for name, number in found.items():
        if number is None or not number.isdecimal():
            said = "is missing" if number is None else f"is {number!r}"
            raise ConfigError(
                f"{name} of a group at {shown} {said}; give rank= and world_size=, or start it with torchrun"
            )
        numbers.append(int(number))
    rank, size = numbers
    if rank >= size:
        raise ConfigError(f"rank of a group of {size} at {shown} is {rank}; ranks count from 0")
    place = f"{shown}?{'&'.join(others)}" if others else shown
    return place, rank, size


def register_places() -> None:
    """Have torch understand softs:// as `init_method`; a second call does nothing."""
    with suppress(RuntimeError):
        register_rendezvous_handler("softs", _meet)  # type: ignore[no-untyped-call]
