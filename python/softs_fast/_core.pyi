"""The native half of softs-fast. Private: use the classes of `softs_fast`.

Every handle belongs to the process that made it; in a fork its methods raise `softs_fast.ForkedError`. Blocking calls drop the GIL
and look for signals every 50 ms.
"""

from typing import Any, final

__all__ = [
    "Broker",
    "Client",
    "Segment",
    "Supplier",
    "TcpMediumServer",
    "TcpMediumWriter",
    "__version__",
    "sweep",
]

__version__: str

def sweep() -> list[str]:
    """Remove the segments that dead owners left in shared memory; their names."""

@final
class Broker:
    """A running broker: one native thread, from construction to `stop`."""

    def __new__(
        cls,
        frontend: str,
        backend: str,
        max_queue_per_product: int,
        max_order_attempts: int,
        peer_timeout_s: float,
        allow_remote: bool,
    ) -> Broker: ...
    @property
    def endpoints(self) -> tuple[str, str]:
        """Frontend and backend, wildcards resolved."""

    @property
    def is_running(self) -> bool:
        """Whether it still serves."""

    def stats(self) -> dict[str, Any]:
        """The fields of `softs_fast.BrokerStats`."""

    def next_log(self) -> tuple[int, str] | None:
        """Wait for the next log record: level and text; None once the broker has stopped."""

    def stop(self) -> None:
        """Close the endpoints and end the thread. Idempotent."""

@final
class Client:
    """A client of one broker: slots, orders, results. Timeouts in milliseconds."""

    def __new__(cls, endpoint: str, address: str, slot_size: int, n_slots: int) -> Client: ...
    def hello(self, timeout_ms: int) -> int | None:
        """Wait until a broker has answered our HELLO; the number it gave us."""

    @property
    def peer_id(self) -> int | None:
        """The number that the broker gave us."""

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        """A finished slot of the product; orders ahead with all free slots."""

    def request_slot(self, product_id: str, timeout_ms: int) -> str | None:
        """Put a free slot on order; its order id."""

    def poll_completions(self, timeout_ms: int) -> int:
        """Wait for results; how many came since the last call."""

    def take_completed(self) -> int | None:
        """The oldest finished slot."""

    def release_slot(self, slot_id: int) -> None:
        """Make a held slot free."""

    def cancel(self, order_id: str, timeout_ms: int) -> bool:
        """Take an order back that no supplier has."""

    def discard(self, timeout_ms: int) -> int:
        """Make all orders stale; how many could be taken back."""

    def stats(self, product_id: str | None, timeout_ms: int) -> dict[str, Any] | None:
        """The broker's statistics, with `diagnosis` of the product if the broker can give one."""

    def failure(self, product_id: str) -> tuple[int, str] | None:
        """Orders of the product that failed in a row, and the text of the last."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection."""

    @property
    def n_held(self) -> int:
        """Slots handed out and not released."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: levels and texts."""

    def close(self) -> None:
        """Leave the broker."""

@final
class Supplier:
    """A supplier of one broker: leases in, results out."""

    def __new__(cls, endpoint: str, product_ids: list[str], name: str) -> Supplier: ...
    def hello(self, timeout_ms: int) -> int | None:
        """Wait until a broker has answered our HELLO; the number it gave us."""

    def next(self) -> tuple[str, str, int, int] | None:
        """Wait for work: product id, address, offset, slot size of the client (0: unknown). None: stop."""

    def finish_and_next(self, error: str | None = None) -> tuple[str, str, int, int] | None:
        """End the work in hand, well or with an error, and wait for the next."""

    def may_write(self) -> bool:
        """Whether the work in hand may still be written."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: levels and texts."""

    def stop(self) -> None:
        """Say GOODBYE and make `next` return None. Idempotent."""

    def close(self) -> None:
        """Disconnect: the broker gives what we hold to somebody else."""

@final
class Segment:
    """Shared memory or a file, owned or attached. After a fork both processes may use it."""

    @staticmethod
    def create_shm(name: str | None, slot_size: int, n_slots: int) -> Segment:
        """Create and lock shared memory; without a name, under one of its own."""

    @staticmethod
    def create_file(path: str, slot_size: int, n_slots: int) -> Segment:
        """Create and lock a file, or overwrite one that no live client owns."""

    @staticmethod
    def attach_shm(name: str) -> Segment:
        """Attach to shared memory of our own user."""

    @staticmethod
    def attach_file(path: str, allowed_dirs: list[str] | None = None) -> Segment:
        """Attach to a file: any, or one in these directories or created by softs-fast."""

    @property
    def address(self) -> str:
        """What peers attach by."""

    @property
    def is_owner(self) -> bool:
        """Whether this handle created it."""

    @property
    def slot_size(self) -> int:
        """Bytes of one slot; 0: unknown."""

    @property
    def n_slots(self) -> int:
        """Number of slots; 0: unknown."""

    @property
    def slots_len(self) -> int:
        """Bytes that can be read and written."""

    @property
    def is_gone(self) -> bool:
        """Whether the owner has removed it, so that nobody will read what is written."""

    def write(self, offset: int, data: Any) -> None:
        """Write any C-contiguous buffer at a byte offset."""

    def write_slot(self, offset: int, data: Any) -> None:
        """As `write`, but exactly one slot, where slot_size is known."""

    def read(self, offset: int, n: int) -> bytes:
        """Copy n bytes out."""

    def read_into(self, offset: int, buffer: Any) -> None:
        """Fill a writable, C-contiguous buffer."""

    def ensure_linked(self) -> bool:
        """Put a name back that somebody removed; whether one was missing."""

    def close(self) -> None:
        """Unmap and unlock. Idempotent."""

    def unlink(self) -> None:
        """Remove the names, as the owner, also after `close`. Idempotent."""

@final
class TcpMediumServer:
    """The owner's side of a TCP medium: slots in this process and a thread that receives samples."""

    def __new__(
        cls, address: str | None, host: str, slot_size: int, n_slots: int, allow_remote: bool
    ) -> TcpMediumServer: ...
    @property
    def address(self) -> str:
        """Where writers connect to, host:port."""

    def write(self, offset: int, data: Any) -> bool:
        """Store bytes in the slots; False when they do not fit."""

    def read(self, offset: int, n: int) -> bytes:
        """Copy n bytes out."""

    def fence(self) -> None:
        """End all connections: what was sent over them and is not stored yet never will be."""

    def close(self) -> None:
        """End all connections. Idempotent."""

@final
class TcpMediumWriter:
    """The supplier's side of a TCP medium."""

    def __new__(cls, address: str, allow_remote: bool, timeout_s: float) -> TcpMediumWriter: ...
    @property
    def address(self) -> str:
        """Where the owner listens, host:port."""

    def write(self, offset: int, data: Any) -> bool:
        """Send bytes and wait until they are stored; False when the owner refused them or is gone."""

    def prepare(self) -> int:
        """Make sure that a connection is open that the owner has accepted; its number."""

    def write_prepared(self, connection: int, offset: int, data: Any) -> bool:
        """As write, over that connection only; False also when it has ended."""
