"""All exceptions that softs-fast raises, under one root.

Each leaf also derives from the builtin exception that code written for `softs` catches: a failed HELLO and a
missing sample, which `softs` reports as RuntimeError, are RuntimeErrors here too.
"""

__all__ = [
    "BrokerTimeout",
    "ConfigError",
    "DamagedError",
    "EndpointInUse",
    "ForkedError",
    "GeneratorFailed",
    "HelloError",
    "NoBroker",
    "NoModel",
    "NoSupplier",
    "NotFinite",
    "PeerLost",
    "SampleTimeout",
    "SegmentError",
    "SegmentExists",
    "SegmentNotFound",
    "SoftsError",
    "SuppliersBusy",
    "WireError",
]


class SoftsError(Exception):
    """Root of all softs-fast exceptions."""


class ConfigError(SoftsError, ValueError):
    """An argument or a configuration is invalid; the text names the field, its value and what is allowed."""


class DamagedError(ConfigError):
    """A file or a save that was once complete is missing, cut short or altered; the text names it."""


class WireError(SoftsError, ValueError):
    """A message, an address or an encoded sample cannot be parsed, or passes a limit of the wire."""


class SegmentError(SoftsError, OSError):
    """A shared-memory or file segment cannot be created, opened, mapped or locked, or it is malformed."""


class SegmentExists(SegmentError, FileExistsError):
    """A segment of that name exists already, and its owner is alive."""


class SegmentNotFound(SegmentError, FileNotFoundError):
    """There is no segment of that name."""


class EndpointInUse(SoftsError, OSError):
    """A live broker already serves the endpoint; the new broker does not take it over."""


class BrokerTimeout(SoftsError, RuntimeError, TimeoutError):
    """The broker did not answer a request in time; a RuntimeError because `softs` raises that."""


class PeerLost(SoftsError, ConnectionError):
    """The other end of a connection has died or has closed it."""


class PeerBusy(SoftsError, BlockingIOError):
    """The other end of a connection reads too slowly, so no more can wait for it; the text has the numbers."""


class PeerTimeout(SoftsError, TimeoutError):
    """The other end of a connection did not answer in time; it may be stopped, and it is still connected."""


class NotFinite(SoftsError, ArithmeticError):
    """An average of snapshots has an infinity or a NaN, so it was not applied; the text names tensor and donor.

    Args:
        text: Text that says which values are not finite.
        donor: Number of the window that has them; -1 if the sum alone exceeds its dtype.

    Attributes:
        donor: Number of the window, as given.
    """

    def __init__(self, text: str, donor: int = -1) -> None:
        super().__init__(text, donor)
        self.donor = donor

    def __str__(self) -> str:
        """Return the text."""
        return str(self.args[0])


class ForkedError(SoftsError, RuntimeError):
    """A native handle was used after a fork; open it in the process that uses it."""


class FleetError(SoftsError, RuntimeError):
    """A worker of a `Fleet` failed; the text ends with its traceback or its last lines of output."""


class FlowError(SoftsError, RuntimeError):
    """A function or a hook of a flow failed, or the flow cannot go on; the text names function, rows and cause."""


class HelloError(SoftsError, RuntimeError):
    """A broker, or the master of a flow, refused a HELLO, or did not answer it."""


class SampleTimeout(SoftsError, RuntimeError, TimeoutError):
    """No sample arrived within `request_timeout`; the subclass names the cause.

    This class itself is raised only where the cause is unknown. It is a RuntimeError because `softs` raises that.
    """


class NoBroker(SampleTimeout):
    """No sample arrived because no broker answers at the endpoint."""


class NoModel(SampleTimeout):
    """No sample arrived because the leading student has not called `set_model` yet."""


class NoSupplier(SampleTimeout):
    """No sample arrived because no connected supplier serves the product."""


class GeneratorFailed(SampleTimeout):
    """No sample arrived because the suppliers' generator raises; the text contains the traceback."""


class SuppliersBusy(SampleTimeout):
    """No sample arrived because every matching supplier is still busy with earlier orders."""
