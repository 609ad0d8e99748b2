"""The softs dialect of the wire in Python: endpoints, statistics, and helpers to encode and decode messages.

Brokers, clients and suppliers of softs-fast encode and decode natively and do not use the helpers of this
module. docs/wire.md lists the messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, WireError

__all__ = [
    "BrokerStats",
    "ClientCmd",
    "ClientInfo",
    "ControlEndpoints",
    "EndpointConfig",
    "Order",
    "OrderCancel",
    "OrderDone",
    "OrderRequest",
    "OrderState",
    "OrderWork",
    "SupplierCmd",
    "SupplierInfo",
    "decode_payload",
    "encode_payload",
    "make_reply",
    "make_request",
    "parse_request",
]


@dataclass
class EndpointConfig:
    """The two endpoints of a broker.

    Args:
        frontend: Endpoint for clients, `ipc://path` or `tcp://host:port`; `tcp://host:port,host2:port` with a standby.
        backend: Endpoint for suppliers.
    """

    frontend: str = "ipc:///tmp/softs_frontend.sock"
    backend: str = "ipc:///tmp/softs_backend.sock"

    @classmethod
    def from_yaml(cls, path: str) -> EndpointConfig:
        """Read `frontend` and `backend` from a YAML file; a missing one keeps its default.

        Raises:
            OSError: the file cannot be read.
            ConfigError: the file does not hold a mapping.
            TypeError: the mapping has another key.
        """
        import yaml

        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
        if not isinstance(content, dict):
            raise ConfigError(
                f'{path}: expected a mapping with "frontend" and "backend", got {type(content).__name__}'
            )
        return cls(**content)


@dataclass(frozen=True)
class ControlEndpoints:
    """The two endpoints of a broker's control channel.

    Args:
        control: Endpoint for students that set the model, in the same forms.
        control_pub: Endpoint from which workers, and students that follow, receive the model.
    """

    control: str = "ipc:///tmp/softs_control.sock"
    control_pub: str = "ipc:///tmp/softs_control_pub.sock"


class ClientCmd:
    """Commands between clients and a broker."""

    HELLO = b"HELLO"
    ORDER = b"ORDER"
    CANCEL = b"CANCEL"
    DISCARD = b"DISCARD"
    STATS = b"STATS"
    FULFILLED = b"FULFILLED"
    FAILED = b"FAILED"


class SupplierCmd:
    """Commands between suppliers and a broker."""

    HELLO = b"HELLO"
    GOODBYE = b"GOODBYE"
    READY = b"READY"
    DONE = b"DONE"
    WORK = b"WORK"
    TERMINATE = b"TERMINATE"


class OrderState:
    """States of an order within a broker."""

    QUEUED = b"QUEUED"
    DISPATCHED = b"DISPATCHED"
    COMPLETED = b"COMPLETED"
    FAILED = b"FAILED"
    CANCELLED = b"CANCELLED"


@dataclass
class ClientInfo:
    """A broker's record of a client; `last_seen` is in seconds."""

    peer_id: int
    last_seen: float = 0.0


@dataclass
class SupplierInfo:
    """A broker's record of a supplier; `last_seen` is in seconds."""

    peer_id: int
    product_ids: list[str] = field(default_factory=list)
    last_seen: float = 0.0


@dataclass
class OrderRequest:
    """ORDER: a client wants `product_id` written to its medium at `address`, from byte `offset` on."""

    order_id: str
    product_id: str
    address: str
    offset: int


@dataclass
class OrderCancel:
    """CANCEL: a client cancels an order."""

    order_id: str


@dataclass
class OrderWork:
    """WORK: a broker dispatches an order to a supplier."""

    order_id: str
    product_id: str
    address: str
    offset: int


@dataclass
class OrderDone:
    """DONE: a supplier has written the sample of an order, or has failed."""

    order_id: str
    success: bool = True


@dataclass
class Order:
    """A broker's record of an order; `dispatched_at` is in seconds."""

    order_id: str
    product_id: str
    address: str
    offset: int
    client_id: bytes
    supplier_id: bytes = b""
    status = OrderState.QUEUED  # no annotation: as in softs, no constructor argument
    dispatched_at: float = 0.0
    attempts: int = 0


@dataclass
class BrokerStats:
    """Counts of a broker; `product_ids` are the patterns of the connected suppliers.

    The last four describe the control channel: the newest model (generation 0: none yet), the ranks of the connected
    students, and the number of subscribers that wait for a first model.
    """

    pending_orders: int
    available_suppliers: int
    connected_clients: int
    connected_suppliers: int
    total_completed: int
    product_ids: list[str]
    generation: int = field(default=0, kw_only=True)
    model_id: str = field(default="", kw_only=True)
    students: list[int] = field(default_factory=list, kw_only=True)
    waiting_workers: int = field(default=0, kw_only=True)


def encode_payload(data: dict[str, Any]) -> bytes:
    """Return `data` as msgpack, bytes kept apart from text.

    Raises:
        TypeError: a value has no msgpack form.
        ImportError: msgpack is not installed.
    """
    import msgpack

    packed: bytes = msgpack.packb(data, use_bin_type=True)
    return packed


def decode_payload(data: bytes) -> dict[str, Any]:
    """Return the msgpack payload `data` as Python objects.

    Raises:
        ValueError: `data` is not one msgpack value.
        ImportError: msgpack is not installed.
    """
    import msgpack

    payload: dict[str, Any] = msgpack.unpackb(data, raw=False)
    return payload


def make_request(cmd: bytes, payload: dict[str, Any]) -> list[bytes]:
    """Return the frames of a request, `[cmd, payload]`.

    Raises:
        TypeError: a value of the payload has no msgpack form.
    """
    return [cmd, encode_payload(payload)]


def parse_request(frames: list[bytes]) -> tuple[bytes, dict[str, Any]]:
    """Return the command and the payload of a request; an empty payload frame is an empty payload.

    Raises:
        WireError: there are fewer than 2 frames.
        ValueError: the payload is not one msgpack value.
    """
    if len(frames) < 2:
        raise WireError(f"Expected at least 2 frames, got {len(frames)}")
    return frames[0], decode_payload(frames[1]) if frames[1] else {}


def make_reply(ok: bool, error: str | None = None, **data: Any) -> bytes:
    """Return the single frame that answers a request.

    Raises:
        TypeError: a value has no msgpack form.
    """
    return encode_payload({"ok": ok, "error": error, **data})
