"""Broker with two endpoints and with four."""

import threading
from pathlib import Path

import pytest
import samples
from waiting import eventually

import softs_fast
from softs_fast import Broker, ConfigError, EndpointConfig
from softs_fast.market.protocol import ControlEndpoints


def test_the_forms_of_its_arguments() -> None:
    names = ("frontend_endpoint", "backend_endpoint", "control_endpoint", "control_pub_endpoint")
    four = ("ipc:///f", "ipc:///b", "ipc:///c", "ipc:///p")
    by_name = dict(zip(names, four, strict=True))
    for broker in (Broker(*four), Broker(**by_name), Broker(*four[:2], **dict(list(by_name.items())[2:]))):
        assert broker.endpoints == EndpointConfig(*four[:2])
        assert broker.control_endpoints == ControlEndpoints(*four[2:])
    for broker in (Broker(), Broker(None), Broker(supplier_timeout=1.0)):
        assert broker.endpoints == EndpointConfig()
        assert broker.control_endpoints == ControlEndpoints(
            "ipc:///tmp/softs_control.sock", "ipc:///tmp/softs_control_pub.sock"
        )
    assert Broker("ipc:///f").endpoints == EndpointConfig(frontend="ipc:///f")
    only = Broker(EndpointConfig(*four[:2]), 1.0, 2.0, 3, 4)
    assert (only.endpoints, only.control_endpoints, only.max_order_attempts) == (
        EndpointConfig(*four[:2]),
        None,
        4,
    )
    both = Broker(EndpointConfig(*four[:2]), control_endpoint="ipc:///c")
    assert both.control_endpoints == ControlEndpoints(control="ipc:///c")


def test_arguments_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        Broker(EndpointConfig(), frontend_endpoint="ipc:///f")
    with pytest.raises(TypeError, match="both by position and by name: frontend_endpoint"):
        Broker("ipc:///f", frontend_endpoint="ipc:///g")
    with pytest.raises(TypeError, match="at most 4 endpoints, got 5"):
        Broker("a", "b", "c", "d", "e")


def test_run_serves_until_stop(short_path: Path) -> None:
    broker = Broker(*samples.endpoints(short_path))
    thread = threading.Thread(target=broker.run)
    thread.start()
    eventually(lambda: (short_path / "p").exists(), "it serves")
    assert broker.bound_control_endpoints == broker.control_endpoints
    # Another thread may call it before `run` has come as far as to wait.
    eventually(lambda: broker.stop() or not thread.is_alive(), "it has stopped")
    assert broker.stats.generation == 0
    assert not (short_path / "c").exists()


@pytest.mark.parametrize("taken", range(4))
def test_an_endpoint_that_is_taken(short_path: Path, taken: int) -> None:
    four = list(samples.endpoints(short_path))
    with Broker(*four):
        others = [f"ipc://{short_path}/o{i}" for i in range(4)]
        others[taken] = four[taken]
        with pytest.raises(softs_fast.EndpointInUse) as caught:
            Broker(*others).start()
        # What it had bound before is free again, even while the caller keeps the error and its frames.
        assert caught.tb is not None
        others[taken] = f"ipc://{short_path}/o{taken}"
        with Broker(*others):
            pass
    with Broker(*four) as again:
        again.start()


def test_wildcards_and_addresses_of_other_machines() -> None:
    with Broker(*["tcp://127.0.0.1:*"] * 4) as broker:
        control = broker.bound_control_endpoints
        assert control is not None
        assert control.control != control.control_pub
        assert ":*" not in control.control
    with pytest.raises(ConfigError, match="allow_remote"):
        Broker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", "tcp://0.0.0.0:*", "tcp://127.0.0.1:*").start()
