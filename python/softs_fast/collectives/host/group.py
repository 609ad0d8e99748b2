"""Formation of a group of processes of one host: rendezvous, proof of shared memory, and joining."""

from __future__ import annotations

import json
import platform
import weakref
from collections.abc import Mapping
from typing import Any

from softs_fast import _kernels
from softs_fast._core import __version__
from softs_fast.collectives import agreement
from softs_fast.collectives.host.ending import Ending
from softs_fast.collectives.probe import Schedule
from softs_fast.collectives.rendezvous import Rendezvous, as_rendezvous
from softs_fast.collectives.strategy import Strategy
from softs_fast.errors import ConfigError, SegmentError
from softs_fast.identity import this_process

# Letters of a text that a rank sends of itself.
_LONGEST_TEXT = 255

#: Strategies of this process that have joined a group of this host, and have not left it.
joined: weakref.WeakSet[Strategy] = weakref.WeakSet()


def strategy_of_process() -> Strategy | None:
    """Return a strategy of this process that has other ranks; None if there is none."""
    return next((strategy for strategy in list(joined) if strategy.size > 1), None)


def join_host_group(
    rank: int,
    size: int,
    rendezvous: object,
    *,
    name: str,
    staging_bytes: int,
    timeout_s: float,
    ending: Ending | None = None,
) -> _kernels.Group:
    """Join the group of all ranks; all ranks join, or none.

    Args:
        rank: This process's number.
        size: Number of ranks, at most 64.
        rendezvous: Place where the ranks meet, as for `as_rendezvous`.
        name: Name that distinguishes groups that use the same rendezvous.
        staging_bytes: Bytes of shared memory for each rank, twice.
        timeout_s: Seconds to wait for the slowest rank in each step.
        ending: Object that ends the calls of the group, of its joining too; None if nothing has to.

    Raises:
        ConfigError: an argument is wrong, ranks have different ones, or a rank is not on this host (its memory cannot
            be read from here, or this rank's from there; the text names them).
        PeerLost: a rank did not join in time, or `ending` was used.
        SegmentError: no shared memory; the text names the cause.
    """
    if not 1 <= size <= _kernels.MAX_RANKS or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size}; sizes are 1 to {_kernels.MAX_RANKS}, ranks 0 to size - 1")
    place = as_rendezvous(rendezvous, rank, size, name=name, timeout_s=timeout_s)
    group = _join(rank, size, place, staging_bytes, timeout_s)
    try:
        if ending is not None:
            ending.of(group)
        group.barrier(0)
        place.close()
        # Rank 0 may serve the rendezvous, so it waits until all ranks are done with it.
        group.barrier(0)
    except BaseException:
        group.close()
        raise
    return group


_REMEDY = (
    "; between hosts, set SOFTS_FAST_TOKEN_FILE to the token file of the job (softs-fast keys new FILE) for the backend "
    '"softs", or use "softs+plain" on a network that is trusted; instead of ShmStrategy use HierarchicalStrategy'
)


#: Longest time-out of a group in shared memory.
MOST_TIMEOUT_S = 1e6


def check_progress(group: _kernels.Group, completed: int, failed_after: int) -> None:
    """Compare how far the ranks of a rebuilt group have come in the group before.

    Args:
        group: the rebuilt group.
        completed: calls of the group before that this rank knows to be complete.
        failed_after: calls before the first one that failed on this rank.

    Raises:
        ConfigError: on all ranks: some have completed a call that failed on others.
    """
    said = [json.loads(text) for text in group.exchange(json.dumps([completed, failed_after]).encode())]
    if max(done for done, _ in said) > min(before for _, before in said):
        counts = ", ".join(f"{done} on rank {rank}" for rank, (done, _) in enumerate(said))
        raise ConfigError(
            f"the group is rebuilt, but some ranks have completed a call that failed on others: {counts} calls; bring "
            "all ranks to one state, such as a checkpoint, and go on"
        )


def _join(rank: int, size: int, place: Rendezvous, staging_bytes: int, timeout_s: float) -> _kernels.Group:
    """Open rank 0's memory, which proves that this rank is on the same host."""
    segment: _kernels.Segment | None = None
    problem = ""
    if rank == 0:
        try:
            segment = _kernels.Segment.create_group(size, staging_bytes)
        except SegmentError as error:
            problem = str(error)
    pid, started, _ = this_process()
    card = {
        "version": __version__,
        "host": platform.node()[:_LONGEST_TEXT],
        "size": size,
        "staging_bytes": staging_bytes,
        "pid": pid,
        "started": started,
        "offer": segment.offer().hex() if segment else "",
    }
    said = place.exchange(json.dumps(card).encode(), timeout_s)
    cards = [_card_of(text) for text in said]
    try:
        # Before the rest, which may be of another form.
        agreement.check_same("version of softs-fast", [card["version"] for card in cards])
        for other, card in enumerate(cards):
            _check_card(card, other)
        for key in ("size", "staging_bytes"):
            agreement.check_same(key, [card[key] for card in cards])
        if rank != 0 and cards[0]["offer"]:
            segment = _kernels.Segment.open_group(bytes.fromhex(cards[0]["offer"]), size, staging_bytes)
    except (ConfigError, SegmentError) as error:
        problem = problem or str(error)
    problems = place.exchange(problem.encode()[:1000], timeout_s)
    if any(problems) or segment is None:
        texts = [f"rank {r}: {text.decode(errors='replace')}" for r, text in enumerate(problems) if text]
        kind = SegmentError if problems[0] and not cards[0].get("offer") else ConfigError
        hosts = [card["host"] for card in cards]
        are_apart = len(set(hosts)) > 1
        where = f" ({agreement.by_value(hosts)})" if are_apart else ""
        remedy = _REMEDY if are_apart else ""
        raise kind(f"{size} ranks{where} cannot form a group in shared memory: {'; '.join(texts)}{remedy}")
    processes = [(card["pid"], card["started"]) for card in cards]
    return _kernels.Group(rank, processes, segment, staging_bytes, timeout_s)


def _card_of(text: bytes) -> dict[str, Any]:
    """Return the description that a rank has sent of itself, with texts for version and host; the rest may have any form."""
    try:
        card = dict(json.loads(text))
    except (ValueError, TypeError):
        card = {}
    return card | {key: str(card.get(key, "unknown"))[:_LONGEST_TEXT] for key in ("version", "host")}


def _check_card(card: dict[str, Any], rank: int) -> None:
    """Raise ConfigError unless a description has numbers and an offer."""
    try:
        fits = all(
            isinstance(card[key], int) and 0 <= card[key] < 1 << 63
            for key in ("size", "staging_bytes", "pid", "started")
        )
        bytes.fromhex(card["offer"])
    except (ValueError, KeyError, TypeError):
        fits = False
    if not fits or card["pid"] >= 1 << 31:
        raise ConfigError(f"rank {rank} sent a malformed description of itself")


class HostStrategy(Strategy):
    """What strategies among processes of one host have alike.

    Args:
        timeout_s: Seconds to wait for the slowest rank, in each step of an operation.
        schedule: Sizes at which the schedule changes; None measures them.
        name: Name that distinguishes groups that use the same rendezvous.

    Raises:
        ConfigError: `timeout_s` is out of range.
    """

    def __init__(self, timeout_s: float, schedule: Schedule | None, name: str) -> None:
        if not 0 < timeout_s <= MOST_TIMEOUT_S:
            raise ConfigError(f"timeout_s is {timeout_s}; it must be above 0, and at most a million")
        self._timeout_s = timeout_s
        self._schedule = schedule
        self._name = name
        self._joined: _kernels.Group | None = None

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        return self._group.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._group.size

    @property
    def timeout_s(self) -> float:
        """Seconds to wait for the slowest rank."""
        return self._timeout_s

    @property
    def schedule(self) -> Schedule:
        """Sizes at which the schedule changes, as given or measured."""
        if self._schedule is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._schedule

    def give_up(self, reason: str) -> None:
        """Break the group: the other ranks raise PeerLost with `reason` at once.

        Raises:
            ConfigError: the group is closed.
            PeerLost: the group is broken already.
        """
        self._group.give_up(reason)

    @property
    def _group(self) -> _kernels.Group:
        if self._joined is None:
            raise ConfigError("this strategy is in no group yet; call init first")
        return self._joined

    def _explain(self, what: str, manifest: Mapping[str, str] | None = None) -> None:
        """Raise ConfigError with the differences between the ranks' calls; every rank does, and no data was moved."""
        raise ConfigError(agreement.difference(self._group, what, manifest or {}))
