"""Messages between ranks of several hosts: a kind, numbers of fixed size, and for a header the config as JSON."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import WireError
from softs_fast.snapshots import MAX_CONFIG_BYTES, Header
from softs_fast.snapshots.window import as_json

# Of one message: a header with the longest config, and the reports.
MAX_MESSAGE_BYTES = 8192
# Of what is transferred: 1 TiB, as a snapshot.
MAX_TRANSFER_BYTES = 1 << 40

# Number of the check, steps trained, whether there is a metric, metric.
_REPORT = struct.Struct("<QQBd")
# Version, step, trained, whether there is a metric, metric, age in seconds, bytes of the config.
_HEADER = struct.Struct("<QqQBddH")
_NUMBER = struct.Struct("<Q")
_LOOK = struct.Struct("<QQ")
_FLAGGED = struct.Struct("<QB")
_OFFER = struct.Struct("<QQ")
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Look:
    """The sender wants what the receiver shows: at once if there is news, else as a sign of life, later.

    Attributes:
        seen: Newest version that the sender knows.
        check: Newest check of which the sender knows the report.
    """

    seen: int
    check: int


@dataclass(frozen=True)
class Seen:
    """The sender's header and its reports, the newest one last: the answer to one `Look`."""

    header: Header
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True)
class Ask:
    """The sender wants a newer version than this one to be published."""

    seen: int


@dataclass(frozen=True)
class Want:
    """The sender wants the receiver's newest version, or its manifest.

    Attributes:
        transfer: a number that the sender has not used before.
        is_manifest: whether the manifest is wanted.
    """

    transfer: int
    is_manifest: bool


@dataclass(frozen=True)
class Offer:
    """So many bytes follow, by a stream of the transfer's number; of the version of the header.

    Attributes:
        transfer: of the `Want` that it answers.
        n_bytes: that follow.
        header: of the version.
    """

    transfer: int
    n_bytes: int
    header: Header


@dataclass(frozen=True)
class Refuse:
    """There is nothing to be had: the answer to a `Want`.

    Attributes:
        transfer: of the `Want` that it answers.
        is_finite: False if the weights are not finite; True if no version was whole for long enough to be copied.
    """

    transfer: int
    is_finite: bool


@dataclass(frozen=True)
class Leave:
    """The sender has closed its board."""


Message = Look | Seen | Ask | Want | Offer | Refuse | Leave


class _Kind(IntEnum):
    LOOK = 1
    SEEN = 2
    ASK = 3
    WANT = 4
    OFFER = 5
    REFUSE = 6
    LEAVE = 7


def encode(message: Message, now_s: float) -> bytes:
    """Return the bytes of a message.

    Args:
        message: what is said.
        now_s: on the clock of `Header.published_s`. The age of a snapshot is sent, as clocks of hosts differ.
    """
    match message:
        case Look(seen, check):
            return bytes([_Kind.LOOK]) + _LOOK.pack(seen, check)
        case Seen(header, reports):
            rows = b"".join(_report_bytes(one) for one in reports)
            return bytes([_Kind.SEEN, len(reports)]) + rows + _header_bytes(header, now_s)
        case Ask(seen):
            return bytes([_Kind.ASK]) + _NUMBER.pack(seen)
        case Want(transfer, is_manifest):
            return bytes([_Kind.WANT]) + _FLAGGED.pack(transfer, is_manifest)
        case Offer(transfer, n_bytes, header):
            return bytes([_Kind.OFFER]) + _OFFER.pack(transfer, n_bytes) + _header_bytes(header, now_s)
        case Refuse(transfer, is_finite):
            return bytes([_Kind.REFUSE]) + _FLAGGED.pack(transfer, is_finite)
        case Leave():
            return bytes([_Kind.LEAVE])


def decode(said: bytes, now_s: float) -> Message:
    """Return the message of bytes that came from another rank.

    Raises:
        WireError: they are none.
    """
    if not 0 < len(said) <= MAX_MESSAGE_BYTES:
        raise WireError(f"a message between hosts has {len(said)} bytes; need 1 to {MAX_MESSAGE_BYTES}")
    kind, rest = said[0], said[1:]
    try:
        match kind:
            case _Kind.LOOK:
                seen, check = _LOOK.unpack(rest)
                return Look(_number(seen), _number(check))
            case _Kind.SEEN if rest and rest[0] <= MAX_REPORTS:
                end = 1 + rest[0] * _REPORT.size
                reports = tuple(_parsed_report(row) for row in _REPORT.iter_unpack(rest[1:end]))
                return Seen(_parsed_header(rest[end:], now_s), reports)
            case _Kind.ASK:
                return Ask(_number(*_NUMBER.unpack(rest)))
            case _Kind.WANT:
                transfer, is_manifest = _FLAGGED.unpack(rest)
                return Want(_number(transfer), bool(_number(is_manifest, 1)))
            case _Kind.OFFER:
                transfer, n_bytes = _OFFER.unpack_from(rest)
                header = _parsed_header(rest[_OFFER.size :], now_s)
                return Offer(_number(transfer), _number(n_bytes, MAX_TRANSFER_BYTES), header)
            case _Kind.REFUSE:
                transfer, is_finite = _FLAGGED.unpack(rest)
                return Refuse(_number(transfer), bool(_number(is_finite, 1)))
            case _Kind.LEAVE if not rest:
                return Leave()
    except struct.error as error:
        raise WireError(f"a message between hosts of kind {kind} has {len(said)} bytes: {error}") from error
    raise WireError(f"a message between hosts is of kind {kind}, with {len(said)} bytes, which there is not")


def _header_bytes(header: Header, now_s: float) -> bytes:
    config = as_json(header.config)
    has_metric = header.metric is not None
    age_s = max(0.0, now_s - header.published_s) if header.version else 0.0
    numbers = (header.version, header.step, header.trained, has_metric, header.metric or 0.0, age_s)
    return _HEADER.pack(*numbers, len(config)) + config


def _parsed_header(said: bytes, now_s: float) -> Header:
    version, step, trained, has_metric, metric, age_s, config_bytes = _HEADER.unpack_from(said)
    config = said[_HEADER.size :]
    if not 0 <= age_s < math.inf:
        raise WireError(f"a snapshot of another host is {age_s} s old; need a time")
    if len(config) != config_bytes or config_bytes > MAX_CONFIG_BYTES:
        raise WireError(
            f"the config of a snapshot of another host has {len(config)} bytes, not {config_bytes}"
        )
    return Header(
        _number(version),
        step,
        metric if _number(has_metric, 1) else None,
        _number(trained),
        now_s - age_s,
        _parsed_config(config) if config else None,
    )


def _report_bytes(report: Report) -> bytes:
    has_metric = report.metric is not None
    return _REPORT.pack(report.check, report.trained, has_metric, report.metric or 0.0)


def _parsed_report(row: tuple[int, int, int, float]) -> Report:
    check, trained, has_metric, metric = row
    return Report(_number(check), metric if _number(has_metric, 1) else None, _number(trained))


def _parsed_config(said: bytes) -> dict[str, object]:
    try:
        config = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the config of a snapshot of another host is malformed: {error}") from error
    if not isinstance(config, dict):
        raise WireError("the config of a snapshot of another host is malformed: it is not a dict")
    return config


def _number(value: int, largest: int = _LARGEST) -> int:
    if value > largest:
        raise WireError(f"a number between hosts is {value}; need at most {largest}")
    return value
