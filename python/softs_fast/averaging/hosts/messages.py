"""Messages between ranks of several hosts, as msgpack; the config of a header is JSON."""

from __future__ import annotations

import json
from typing import Annotated

from softs_fast import records
from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import WireError
from softs_fast.records import Amount, Count, Packed, most, span
from softs_fast.snapshots import MAX_CONFIG_BYTES, Header, as_json

# Of one message: a header with the longest config, and the reports.
MAX_MESSAGE_BYTES = 8192
# Of what is transferred: 1 TiB, as a snapshot.
MAX_TRANSFER_BYTES = 1 << 40


class SentHeader(records.Message):
    """A header, with the age of its version in place of a time, as clocks of hosts differ."""

    version: Count
    step: Annotated[int, span(-(1 << 63), (1 << 63) - 1)]
    metric: float | None
    trained: Count
    age_s: Amount
    config: Annotated[bytes, most(MAX_CONFIG_BYTES)]

    def __post_init__(self) -> None:
        _parsed_config(self.config)

    @classmethod
    def of(cls, header: Header, now_s: float) -> SentHeader:
        """Return what is sent of a header."""
        age_s = max(0.0, now_s - header.published_s) if header.version else 0.0
        return cls(header.version, header.step, header.metric, header.trained, age_s, as_json(header.config))

    def at(self, now_s: float) -> Header:
        """Return the header that has come at a time on this host's clock."""
        config = _parsed_config(self.config)
        return Header(self.version, self.step, self.metric, self.trained, now_s - self.age_s, config)


class Look(records.Message, tag=1):
    """The sender wants what the receiver shows: at once if there is news, else as a sign of life, later.

    Attributes:
        seen: Newest version that the sender knows.
        check: Newest check of which the sender knows the report.
    """

    seen: Count
    check: Count


class Seen(records.Message, tag=2):
    """The sender's header and its reports, the newest one last: the answer to one `Look`."""

    header: SentHeader
    reports: Annotated[tuple[Report, ...], most(MAX_REPORTS)] = ()


class Ask(records.Message, tag=3):
    """The sender wants a newer version than this one to be published."""

    seen: Count


class Want(records.Message, tag=4):
    """The sender wants the receiver's newest version, or its manifest.

    Attributes:
        transfer: a number that the sender has not used before.
        is_manifest: whether the manifest is wanted.
    """

    transfer: Count
    is_manifest: bool


class Offer(records.Message, tag=5):
    """So many bytes follow, by a stream of the transfer's number; of the version of the header.

    Attributes:
        transfer: Number of the transfer, from the `Want` that it answers.
        n_bytes: Number of bytes that follow.
        header: Header of the version that is sent.
    """

    transfer: Count
    n_bytes: Annotated[int, span(0, MAX_TRANSFER_BYTES)]
    header: SentHeader


class Refuse(records.Message, tag=6):
    """There is nothing to be had: the answer to a `Want`.

    Attributes:
        transfer: Number of the transfer, from the `Want` that it answers.
        is_finite: False if the weights are not finite; True if no version was whole for long enough to be copied.
    """

    transfer: Count
    is_finite: bool


class Leave(records.Message, tag=7):
    """The sender has closed its board."""


Message = Look | Seen | Ask | Want | Offer | Refuse | Leave
MESSAGES: Packed[Message] = Packed(Message, most_bytes=MAX_MESSAGE_BYTES, what="message between hosts")


def _parsed_config(said: bytes) -> dict[str, object] | None:
    if not said:
        return None
    try:
        config = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the config of a snapshot of another host is malformed: {error}") from error
    if not isinstance(config, dict):
        raise WireError("the config of a snapshot of another host is malformed: it is not a dict")
    return config
