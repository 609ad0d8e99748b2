"""Which requests are genuine: keys of workers and of the owner, counters, nonces."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ...wire import signing
from ...wire.messages import Admission

__all__ = ["Session", "Sessions"]

#: Nonces of joins that are kept, so that none is used twice.
_MAX_NONCES = 1 << 16
#: A browser counts exactly up to 1 << 53.
_MAX_FIRST = 1 << 52


@dataclass
class Session:
    """Of a worker, from a join on.

    Attributes:
        worker_id: Id of the worker.
        key: Key of its requests and their answers.
        window: Window of the counters that it has used.
    """

    worker_id: str
    key: bytes = field(repr=False)
    window: signing.CounterWindow = field(default_factory=signing.CounterWindow)


class Sessions:
    """The sessions of all workers. A server that was started again has none: workers join once more.

    Args:
        secret: Secret of the invite.
        job: Bytes of the invite that name the job.
        owner: 32 random bytes, which only the owner has.
    """

    def __init__(self, secret: bytes, job: bytes, owner: bytes) -> None:
        self._secret = secret
        self._job = job
        self._by_id: dict[str, Session] = {}
        self._nonces: OrderedDict[bytes, None] = OrderedDict()
        self._instances: OrderedDict[str, str] = OrderedDict()
        #: What workers with a certificate of the token of the job are told.
        self.admission = Admission(job.hex(), secret.hex())
        self.answer_key = signing.answer_key(secret, job)
        self.owner = Session(signing.OWNER, signing.owner_key(owner, job))
        #: Counter of the owner's next request that changes something. The server gives it, by the status: programs of
        #: the owner have no clock in common, and a request of before a restart must not be taken for a new one.
        self.owner_n = 1 + secrets.randbelow(_MAX_FIRST)

    def __len__(self) -> int:
        return len(self._by_id)

    def join_key(self, nonce: bytes) -> bytes:
        """Return the key of a join and its answer."""
        return signing.join_key(self._secret, self._job, nonce)

    def use_nonce(self, nonce: bytes) -> bool:
        """Note the nonce of a genuine join; return whether it is new."""
        if nonce in self._nonces:
            return False
        self._nonces[nonce] = None
        if len(self._nonces) > _MAX_NONCES:
            self._nonces.popitem(last=False)
        return True

    def latest(self, instance: str) -> str | None:
        """Return the id that a process was given by its last join, of which it may not have seen the answer."""
        return self._instances.get(instance)

    def begin(self, worker_id: str, nonce: bytes, instance: str = "") -> bytes:
        """Begin the session of a worker; return the server's nonce.

        Args:
            worker_id: Id of the worker.
            nonce: Nonce of its join.
            instance: Instance of its process; "" if it is not known.
        """
        if instance:
            self._instances[instance] = worker_id
            self._instances.move_to_end(instance)
            if len(self._instances) > _MAX_NONCES:
                self._instances.popitem(last=False)
        own = secrets.token_bytes(signing.NONCE_BYTES)
        key = signing.session_key(self._secret, self._job, nonce, own, worker_id)
        self._by_id[worker_id] = Session(worker_id, key)
        return own

    def find(self, worker_id: str) -> Session | None:
        """Return a session; None if there is none."""
        return self.owner if worker_id == signing.OWNER else self._by_id.get(worker_id)

    def keep(self, is_known: Callable[[str], bool]) -> None:
        """End the sessions of ids that are not known any more."""
        for worker_id in [one for one in self._by_id if not is_known(one)]:
            del self._by_id[worker_id]

    def take(self, session: Session, n: int) -> bool:
        """Mark the counter of a genuine request as used; False if it was used before, is too old, or was not given."""
        if session is not self.owner:
            return session.window.take(n)
        if n != self.owner_n:
            return False
        self.owner_n += 1
        return True
