"""gRPC's own protocol for health, `grpc.health.v1`: what `grpc_health_probe`, Envoy and Kubernetes ask.

The package grpcio-health-checking has it, too. Each of its releases takes protobuf from the version of its day on, so a
process could not choose its own any more; and it is told of changes, where this asks when it is asked. Its client is
what the tests use.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...records import Proto, Record, most

__all__ = ["SERVICE", "encode_answer", "is_known"]

SERVICE = "grpc.health.v1.Health"


class HealthCheckRequest(Record):
    """Asks for a service; the empty name stands for all."""

    service: Annotated[str, most(1024)]


_Status = Literal["SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]
_STATUS: dict[bool | None, _Status] = {True: "SERVING", False: "NOT_SERVING", None: "SERVICE_UNKNOWN"}


class HealthCheckResponse(Record):
    """The health of a service."""

    status: _Status


_REQUESTS: Proto[HealthCheckRequest] = Proto(HealthCheckRequest, most_bytes=1024, what="HealthCheckRequest")
_ANSWERS: Proto[HealthCheckResponse] = Proto(HealthCheckResponse, most_bytes=1024, what="HealthCheckResponse")


def is_known(request: bytes, names: tuple[str, ...]) -> bool:
    """Return whether a request asks for one of these services; the empty name stands for all.

    Raises:
        WireError: it is malformed, or too long.
    """
    return _REQUESTS.decode(request).service in ("", *names)


def encode_answer(is_serving: bool | None) -> bytes:
    """Return an answer; None stands for a service that is not known, which only Watch answers so."""
    return _ANSWERS.encode(HealthCheckResponse(_STATUS[is_serving]))
