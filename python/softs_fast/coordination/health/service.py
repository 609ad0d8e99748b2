"""gRPC's own protocol for health, `grpc.health.v1`: what `grpc_health_probe`, Envoy and Kubernetes ask.

The package grpcio-health-checking has it, too. Each of its releases takes protobuf from the version of its day on, so a
process could not choose its own any more; and it is told of changes, where this asks when it is asked. Its client is
what the tests use.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...errors import WireError
from ..requirements import import_grpc

__all__ = ["CHECK", "SERVICE", "WATCH", "encode_answer", "is_known"]

SERVICE = "grpc.health.v1.Health"
CHECK = f"/{SERVICE}/Check"
WATCH = f"/{SERVICE}/Watch"

#: Length of a request, at most.
_MAX_REQUEST_BYTES = 1024
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


def is_known(request: bytes, names: tuple[str, ...]) -> bool:
    """Return whether a request asks for one of these services; the empty name stands for all.

    Raises:
        WireError: it is malformed, or too long.
    """
    if len(request) > _MAX_REQUEST_BYTES:
        raise WireError(f"a request has {len(request)} bytes; at most {_MAX_REQUEST_BYTES}")
    message = _message("HealthCheckRequest")()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(request)
    except DecodeError as error:
        raise WireError(f"a request is malformed: {error}") from error
    return message.service in ("", *names)


def encode_answer(is_serving: bool | None) -> bytes:
    """Return an answer; None stands for a service that is not known, which only Watch answers so."""
    status = {True: _SERVING, False: _NOT_SERVING, None: _SERVICE_UNKNOWN}[is_serving]
    data: bytes = _message("HealthCheckResponse")(status=status).SerializeToString()
    return data


@cache
def _message(name: str) -> Any:
    """Return the class of a message, of a pool of its own: grpcio-health-checking may be in this process, too."""
    import_grpc()
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package="grpc.health.v1", syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    answer = file.message_type.add(name="HealthCheckResponse")
    values = answer.enum_type.add(name="ServingStatus").value
    for number, value in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        values.add(name=value, number=number)
    answer.field.add(
        name="status",
        number=1,
        type=field.TYPE_ENUM,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
        label=field.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{name}"))
