"""Requests of the owner to a server that runs."""

from __future__ import annotations

import secrets
from contextlib import closing

from ...errors import ConfigError, PeerLost, WireError
from ...process import Closing
from ..wire import answers, signing
from ..wire.answers import Code
from ..wire.limits import MAX_STATUS_BYTES
from ..wire.messages import Control, Failure, Status, decode, encode
from ..worker.retries import Trouble
from ..worker.transport import Transport, TransportError
from .access import OwnerAccess

__all__ = ["OwnerClient"]

#: Of a control, while other programs of the owner take the counter that the server gave.
_ATTEMPTS = 5


class _UsedError(ConfigError):
    """The counter of a request is not the next one any more."""


class OwnerClient(Closing):
    """Asks a server for its status, and tells it what to do.

    Args:
        access: Invite and key of the owner.

    Raises:
        ConfigError: urllib3 is not installed.
    """

    def __init__(self, access: OwnerAccess) -> None:
        self._access = access
        self._transport = Transport(access.invite)

    def status(self, since: int = -1, wait_s: float = 0.0) -> Status | None:
        """Return the status; None if it is still that of `since` after some time.

        Raises:
            PeerLost: no server answers.
            ConfigError: the server does not take the owner's key.
        """
        target = f"{answers.STATUS}?since={since}&wait={wait_s:g}"
        body = self._send("GET", target, b"", wait_s)
        return decode(Status, body, MAX_STATUS_BYTES) if body else None

    def control(self, action: Control) -> None:
        """Have the server do something.

        Raises:
            PeerLost: no server answers.
            ConfigError: the server does not take the owner's key, or it cannot be done.
        """
        for n_left in reversed(range(_ATTEMPTS)):
            status = self.status()
            assert status is not None
            try:
                self._send("POST", answers.CONTROL, encode(action), 0.0, status.next_control)
                return
            except _UsedError:
                # Another program of the owner was first.
                if not n_left:
                    raise

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _send(self, method: str, target: str, body: bytes, held_s: float, n: int | None = None) -> bytes:
        # Any counter reads; one that is unknown before ties the answer to this request.
        n = secrets.randbits(62) if n is None else n
        mac = signing.request_mac(
            self._access.key, worker_id=signing.OWNER, method=method, target=target, n=n, digested=body
        )
        headers = {"Authorization": str(signing.Authorization(signing.OWNER, n, mac))}
        url = self._access.invite.url
        try:
            with closing(
                self._transport.send(method, target, headers, (body,) if body else (), held_s)
            ) as response:
                data = response.read(MAX_STATUS_BYTES + 1)
        except TransportError as error:
            is_explained = error.trouble is Trouble.CERTIFICATE
            remedy = "" if is_explained else "; look whether it runs, and start it with the same --state"
            raise PeerLost(f"no parameter server answers at {url}: {error}{remedy}") from None
        expected = signing.answer_mac(
            self._access.key,
            request=mac,
            status=response.status,
            version=response.headers.get(answers.VERSION),
            digested=data,
        )
        if response.status < 300 and signing.check_answer(expected, response.headers.get(answers.MAC)):
            return data
        try:
            failure = decode(Failure, data)
        except WireError:
            failure = Failure("", f"{response.status} of another server")
        if failure.code == Code.REPLAYED:
            raise _UsedError(f"the server at {url} refuses: {failure.message}")
        raise ConfigError(f"the server at {url} refuses: {failure.message}")
