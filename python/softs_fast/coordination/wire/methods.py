"""The methods of the coordinator, by their names on the wire; their messages are in `requests`."""

from __future__ import annotations

from .requests import (
    EndCheckpointRequest,
    EndCheckpointResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    KeysReply,
    KeysRequest,
    RegisterWorkerRequest,
    RegisterWorkerResponse,
    Reply,
    Request,
    StartCheckpointRequest,
    StartCheckpointResponse,
    UnregisterWorkerRequest,
    UnregisterWorkerResponse,
)

__all__ = ["ADMIN", "REPLIES", "SERVICE", "SESSION", "STATUS", "WATCH", "method_of"]

SERVICE = "softs.v1.Coordinator"
SESSION, STATUS, WATCH, ADMIN = (f"/{SERVICE}/{name}" for name in ("Session", "Status", "Watch", "Admin"))

#: What answers which request.
REPLIES: dict[type[Request], type[Reply]] = {
    KeysRequest: KeysReply,
    RegisterWorkerRequest: RegisterWorkerResponse,
    UnregisterWorkerRequest: UnregisterWorkerResponse,
    HeartbeatRequest: HeartbeatResponse,
    StartCheckpointRequest: StartCheckpointResponse,
    EndCheckpointRequest: EndCheckpointResponse,
}


def method_of(request: type[Request]) -> str:
    """Return the full name of the method that takes a request."""
    return f"/{SERVICE}/{request.__name__.removesuffix('Request')}"
