"""When a worker or a coordinator is ready, and what gRPC's messages of health look like."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from softs_fast.coordination.health import service
from softs_fast.coordination.health.readiness import coordinator_reason, readiness_page, worker_reason
from softs_fast.coordination.job.messages import Fence, Hello, Member, Refused, Table, Welcome
from softs_fast.coordination.job.participant import Participant
from softs_fast.coordination.job.status import Status
from softs_fast.errors import PeerLost, WireError

FENCE = Fence(1, 1, "gone", 1, "seat 1 is gone")


def reason(machine: Participant) -> str:
    return worker_reason(machine, None, has_left=False, trouble="")


def test_a_worker_is_ready_while_it_is_a_member_of_an_open_epoch() -> None:
    machine = Participant(Hello("job", "w0", 7))
    assert reason(machine) == "it has not reached the coordinator yet"
    machine.connected()
    machine.receive(Welcome(1, 0))
    assert reason(machine) == "it waits for an epoch"
    machine.receive(Table(1, 1, (Member(0, 0, "w0", 7, ""),), 0, "back", (), None))
    assert reason(machine) == "it prepares for an epoch"
    machine.prepared()
    assert reason(machine) == ""
    machine.disconnected()
    assert reason(machine) == "", "the epoch goes on without a coordinator"
    machine.receive(FENCE)
    assert reason(machine) == "its epoch is over"
    machine.ended()
    assert reason(machine) == "it waits for an epoch"
    machine.receive(Refused("evicted", "an administrator said so"))
    assert reason(machine) == "the coordinator has refused it"
    assert worker_reason(machine, PeerLost("evicted: slow"), has_left=False, trouble="") == "evicted: slow"
    assert worker_reason(machine, None, has_left=True, trouble="") == "it has left the job"


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("forming", ""),
        ("open", ""),
        ("fenced", ""),
        ("ended", "the job has ended: all members have left"),
        ("failed", "the job has failed: all members have left"),
    ],
)
def test_a_coordinator_is_ready_until_its_job_is_over(phase: str, expected: str) -> None:
    status = Status(
        "job",
        phase,
        "all members have left",
        0.0,
        1,
        1,
        0,
        (),
        0,
        (),
        (),
        0.0,
        None,  # type: ignore[arg-type]
    )
    assert coordinator_reason(status) == expected
    assert coordinator_reason(None) == "the coordinator does not answer"


def test_pages() -> None:
    assert (readiness_page("").status, readiness_page("").text) == (200, "ready\n")
    assert (readiness_page("no").status, readiness_page("no").text) == (503, "no\n")


def test_messages_are_those_of_grpc() -> None:
    names = ("softs.v1.Coordinator",)
    for name, is_known in (("", True), ("softs.v1.Coordinator", True), ("another", False)):
        request = health_pb2.HealthCheckRequest(service=name).SerializeToString()
        assert service.is_known(request, names) is is_known
    for answer, expected in ((True, "SERVING"), (False, "NOT_SERVING"), (None, "SERVICE_UNKNOWN")):
        message = health_pb2.HealthCheckResponse.FromString(service.encode_answer(answer))
        assert health_pb2.HealthCheckResponse.ServingStatus.Name(message.status) == expected


@pytest.mark.parametrize("request_bytes", [b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x0a" * 2000])
def test_malformed_requests(request_bytes: bytes) -> None:
    with pytest.raises(WireError, match="HealthCheckRequest"):
        service.is_known(request_bytes, ())
