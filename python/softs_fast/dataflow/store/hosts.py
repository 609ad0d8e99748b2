"""Values of rows between hosts: a server of the own segment, and connections to those of other processes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import _core
from ...errors import ConfigError, FlowError, HelloError, PeerLost
from ...trust import Der, bracketed
from .columns import Places
from .places import SegmentAddress

__all__ = ["HostLinks"]

#: Host of an endpoint that only the host of the master is known by.
_AT_MASTER = "*"
#: How long a connection may take to be made, seconds.
_CONNECT_S = 10.0

_Integers = np.ndarray[Any, np.dtype[np.int64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(slots=True)
class _Holder:
    """A process of which values are read.

    Attributes:
        endpoint: Endpoint at which the process serves its values.
        reader: Connection to the process; None while it is used, and if it is not open.
        busy: Lock that is held while the connection is used.
    """

    endpoint: str
    reader: _core.RowReader | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)


class HostLinks:
    """What one process needs to serve its values to other hosts, and to read theirs.

    Any thread may call. There is one connection to each process of which values are read, and it stays.

    Args:
        credentials: What this process and those of other hosts show each other, as `TlsFiles.der` returns it.
        listen: Endpoint at which this process serves its own values, such as `tcp://0.0.0.0:0`.
        reachable: Host by which other hosts reach this process; `*`: that of the master.
        master: Host by which this process reaches the master.
        lost_after_s: Seconds after which a process that sends no bytes, or takes none, counts as lost.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(
        self,
        credentials: Der,
        *,
        listen: str = "tcp://127.0.0.1:0",
        reachable: str = _AT_MASTER,
        master: str = "127.0.0.1",
        lost_after_s: float = 30.0,
    ) -> None:
        if not lost_after_s > 0:
            raise ConfigError(f"lost_after_s must be above 0, have {lost_after_s}")
        self._credentials = credentials
        self._listen = listen
        self._reachable = reachable
        self._master = master
        self._lost_after_s = lost_after_s
        self._server: _core.RowServer | None = None
        #: By worker, so that the connection to a process that was replaced goes.
        self._holders: dict[int, _Holder] = {}
        self._lock = threading.Lock()

    def serve(self, file: int, first: int, segment: SegmentAddress) -> str:
        """Serve the values of a segment from now on, in a native thread; returns where.

        Args:
            file: Descriptor of the segment.
            first: Byte of the file at which the data of the segment begins.
            segment: Address of the segment with the values that are served.

        Raises:
            EndpointInUse: a process listens there.
            ConfigError: the endpoint is malformed, or the credentials are.
            PeerLost: the system has no more descriptors or threads.
        """
        self._server = _core.RowServer(
            self._listen,
            self._credentials,
            file,
            first,
            segment.n_bytes,
            segment.nonce,
            self._lost_after_s,
        )
        port = self._server.endpoint.rpartition(":")[2]
        return f"tcp://{bracketed(self._reachable)}:{port}"

    @property
    def sent_bytes(self) -> int:
        """Bytes that were written to readers, with headers."""
        return self._server.sent_bytes if self._server is not None else 0

    def read(self, places: Places, out: _Bytes, at: _Integers) -> None:
        """Read values of another process, without the GIL.

        Args:
            places: Places of the values.
            out: Array of bytes to which the values are written.
            at: Offset of each value in `out`, int64 [rows].

        Raises:
            PeerLost: the process has ended, or sends nothing.
            FlowError: rows were freed, the process there is another one, or it has another token.
        """
        endpoint = places.segment.endpoint.replace("//*:", f"//{bracketed(self._master)}:")
        what = f"rows of worker {places.worker} (process {places.segment.pid} at {endpoint})"
        columns = (places.offsets, places.n_bytes, places.serials.astype("<u8").view("<i8"), at)
        fields = np.stack([one.astype("<i8") for one in columns], axis=1).tobytes()
        with self._lock:
            holder = self._holders.get(places.worker)
            if holder is None or holder.endpoint != endpoint:
                holder = self._holders[places.worker] = _Holder(endpoint)
        try:
            with holder.busy:
                gone = self._read(holder, places.segment.nonce, fields, out)
        except PeerLost as error:
            raise PeerLost(f"{what} cannot be read: {error}") from error
        except HelloError as error:
            raise FlowError(f"{what} cannot be read: {error}") from error
        if gone is not None and gone[1]:
            raise PeerLost(f"{what} cannot be read: it has ended, and another process is there")
        if gone is not None:
            raise FlowError(
                f"value {gone[0]} of {len(places)} of worker {places.worker} is gone: its row was freed; ask the master "
                "for the rows that are there"
            )

    def close(self) -> None:
        """End the server and all connections; idempotent."""
        server, self._server = self._server, None
        with self._lock:
            self._holders.clear()
        if server is not None:
            server.close()

    def _read(self, holder: _Holder, nonce: bytes, fields: bytes, out: _Bytes) -> tuple[int, bool] | None:
        known, holder.reader = holder.reader, None
        if known is not None:
            try:
                return self._keep(holder, known, known.read(nonce, fields, out, self._lost_after_s))
            except PeerLost:
                pass  # it may have ended long ago, with a process of that address
        made = _core.RowReader(holder.endpoint, self._credentials, _CONNECT_S)
        return self._keep(holder, made, made.read(nonce, fields, out, self._lost_after_s))

    def _keep(
        self, holder: _Holder, reader: _core.RowReader, gone: tuple[int, bool] | None
    ) -> tuple[int, bool] | None:
        if gone is None:
            holder.reader = reader
        return gone
