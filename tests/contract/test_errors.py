"""The exceptions: one root, builtins that callers of softs catch, picklable."""

import pickle

import pytest

import softs_fast
from softs_fast import errors

BUILTINS = {
    "SoftsError": (Exception,),
    "ConfigError": (ValueError,),
    "WireError": (ValueError,),
    "SegmentError": (OSError,),
    "SegmentExists": (errors.SegmentError, FileExistsError),
    "SegmentNotFound": (errors.SegmentError, FileNotFoundError),
    "EndpointInUse": (OSError,),
    "BrokerTimeout": (TimeoutError, RuntimeError),
    "PeerLost": (ConnectionError,),
    "ForkedError": (RuntimeError,),
    "HelloError": (RuntimeError,),
    "DamagedError": (errors.ConfigError,),
    "NotFinite": (ArithmeticError,),
    "SampleTimeout": (TimeoutError, RuntimeError),
    "NoBroker": (errors.SampleTimeout,),
    "NoModel": (errors.SampleTimeout,),
    "NoSupplier": (errors.SampleTimeout,),
    "GeneratorFailed": (errors.SampleTimeout,),
    "SuppliersBusy": (errors.SampleTimeout,),
}


def test_every_exception_is_listed_here() -> None:
    assert set(BUILTINS) == set(errors.__all__)


@pytest.mark.parametrize("name", BUILTINS)
def test_exceptions(name: str) -> None:
    exception = getattr(softs_fast, name)
    assert exception is getattr(errors, name)
    assert issubclass(exception, errors.SoftsError)
    assert issubclass(exception, BUILTINS[name])
    assert exception.__doc__
    copy = pickle.loads(pickle.dumps(exception("what failed: have 1, need 2")))
    assert type(copy) is exception
    assert str(copy) == "what failed: have 1, need 2"
