"""Messages between ranks of several hosts, as msgpack; the config of a header is JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
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

_Bytes = Annotated[int, span(0, MAX_TRANSFER_BYTES)]


class Look(records.Message, tag=1):
    """The sender wants what the receiver shows: at once if there is news, else as a sign of life, later.

    Attributes:
        seen: Newest version that the sender knows.
        check: Newest check of which the sender knows the report.
    """

    seen: Count
    check: Count


@dataclass(frozen=True)
class Seen:
    """The sender's header and its reports, the newest one last: the answer to one `Look`."""

    header: Header
    reports: tuple[Report, ...] = ()


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


@dataclass(frozen=True)
class Offer:
    """So many bytes follow, by a stream of the transfer's number; of the version of the header.

    Attributes:
        transfer: Number of the transfer, from the `Want` that it answers.
        n_bytes: Number of bytes that follow.
        header: Header of the version that is sent.
    """

    transfer: int
    n_bytes: int
    header: Header


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


class _HeaderForm(records.Message):
    """A header, of which the age is sent, as clocks of hosts differ."""

    version: Count
    step: Annotated[int, span(-(1 << 63), (1 << 63) - 1)]
    metric: float | None
    trained: Count
    age_s: Amount
    config: Annotated[bytes, most(MAX_CONFIG_BYTES)]

    @classmethod
    def of(cls, header: Header, now_s: float) -> _HeaderForm:
        age_s = max(0.0, now_s - header.published_s) if header.version else 0.0
        return cls(header.version, header.step, header.metric, header.trained, age_s, as_json(header.config))

    def header(self, now_s: float) -> Header:
        config = _parsed_config(self.config) if self.config else None
        return Header(self.version, self.step, self.metric, self.trained, now_s - self.age_s, config)


class _SeenForm(records.Message, tag=2):
    header: _HeaderForm
    reports: Annotated[tuple[Report, ...], most(MAX_REPORTS)]


class _OfferForm(records.Message, tag=5):
    transfer: Count
    n_bytes: _Bytes
    header: _HeaderForm


_Plain = Look | Ask | Want | Refuse | Leave
_PACKED: Packed[_Plain | _SeenForm | _OfferForm] = Packed(
    _Plain | _SeenForm | _OfferForm, most_bytes=MAX_MESSAGE_BYTES, what="message between hosts"
)


def encode(message: Message, now_s: float) -> bytes:
    """Return the bytes of a message.

    Args:
        message: Message to encode.
        now_s: Time now, seconds, on the clock of `Header.published_s`.
    """
    match message:
        case Seen(header, reports):
            return _PACKED.encode(_SeenForm(_HeaderForm.of(header, now_s), reports))
        case Offer(transfer, n_bytes, header):
            return _PACKED.encode(_OfferForm(transfer, n_bytes, _HeaderForm.of(header, now_s)))
    return _PACKED.encode(message)


def decode(said: bytes, now_s: float) -> Message:
    """Return the message of bytes that came from another rank.

    Raises:
        WireError: they are none.
    """
    match _PACKED.decode(said):
        case _SeenForm(header, reports):
            return Seen(header.header(now_s), reports)
        case _OfferForm(transfer, n_bytes, header):
            return Offer(transfer, n_bytes, header.header(now_s))
        case message:
            return message


def _parsed_config(said: bytes) -> dict[str, object]:
    try:
        config = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the config of a snapshot of another host is malformed: {error}") from error
    if not isinstance(config, dict):
        raise WireError("the config of a snapshot of another host is malformed: it is not a dict")
    return config
