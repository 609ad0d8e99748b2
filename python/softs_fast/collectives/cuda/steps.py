"""Steps of collectives on CUDA devices, with the proof that no data is read too early or overwritten too soon.

Step k uses half k mod 2 of the memory that every rank shares. In it each rank, in the order of its stream,

1. writes its tensor to `staged`, and announces a mark (signals.py);
2. after a *host epoch*, which ends when all ranks have published theirs, waits until all ranks have announced that mark,
   and reads their tensors;
3. with two shots: writes its slice to `reduced`, announces the next mark, and after one more host epoch waits until all
   ranks have announced that one, and reads;
4. records an event of its own, `done`, for which its next step waits, because each step may use another stream.

All of this only submits work: no host waits for a device, only for other hosts. All ranks count marks alike: each host
epoch with an announcement takes one, and so does each epoch in which the calls differed, on all ranks, since some may
have announced in it. So no mark is announced for two things. The first argument is about hosts:

- A rank that has passed the host epoch knows that all ranks have submitted their announcement. So every wait ends, if
  the announcing rank lives and its device works.
- With events, a wait refers to the last record *when the wait is submitted*. A rank records the event of mark m again
  for mark m + 2, at the earliest. Before, it has passed the epoch of mark m + 1, which every rank publishes after it has
  submitted its waits for m. So a wait for m refers to the record for m, no earlier and no later one. (Two events
  suffice.) With words this is plain: a wait for m ends at m, and words only rise.

The second one is about devices:

- A half is read only after the mark that was announced when it was written.
- A half is written again in step k, after this rank's step k - 1, which has waited until all ranks had announced that
  they had staged in step k - 1. Every rank announces that after its own step k - 2. So all ranks have finished reading
  the data of step k - 2, and no other data was in this half. Nothing is announced for the end of reading.

A call that differs from those of other ranks ends at its first epoch, before any rank has read data. The step counts as
not taken, but records `done`; its half is staged again, and announced by another mark.

A rank that has died announces nothing any more. Words are raised by a watchdog then: the streams of the others go on,
with undefined results, and the next call, `synchronize` or `barrier` raises PeerLost. They read memory of the dead rank,
which stays as long as it is open here, and write memory of their own rank only. The same happens if a rank breaks the
group. With events, a wait that was submitted before the death stays in the stream for ever, with all work after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from softs_fast import _kernels
from softs_fast.collectives.cuda.arena import FIRST_EPOCH, Arena
from softs_fast.collectives.cuda.pieces import Pieces, slice_bounds
from softs_fast.collectives.cuda.signals import FIRST_MARK, next_mark
from softs_fast.collectives.probe import Schedule
from softs_fast.errors import ConfigError, ForkedError, PeerLost
from softs_fast.tensors import cuda

# Tag of the second and later host epochs of a call; the first one has the tag of the call.
_GOES_ON = 1
# Chunk sizes are multiples of this, so that chunks end at whole words of every dtype.
_CHUNK_ITEMS = 1024
# A wait for a device spins at first: sleeps of tens of microseconds would dominate what is measured by such waits.
_SPIN_S = 300e-6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 20e-6, 1e-3


@dataclass(frozen=True)
class Reduction:
    """How the tensors of all ranks are reduced.

    Attributes:
        op: `sum`, `mean`, `min` or `max`.
        scale: factor of the result.
        staged: dtype that is exchanged, by name.
        staged_bytes: bytes of an element of it.
    """

    op: str
    scale: float
    staged: str
    staged_bytes: int


class Steps:
    """Submits steps to this rank's streams. Not thread-safe.

    Args:
        group: group of the ranks' host processes.
        arena: memory and announcements of all ranks.
        device: number of this rank's device.
        timeout_s: seconds to wait for a device.
        in_kernel: whether the ranks wait for each other inside one kernel.
    """

    def __init__(
        self, group: _kernels.Group, arena: Arena, device: int, timeout_s: float, *, in_kernel: bool
    ) -> None:
        self._group = group
        self._arena = arena
        self._signals = arena.signals
        self._device = device
        self._timeout_s = timeout_s
        self._in_kernel = in_kernel
        self._taken = 0
        self._mark = FIRST_MARK
        self._begun_in: int | None = None
        self._epoch = FIRST_EPOCH
        self._lost: list[int] = []
        # Later they would be loaded behind work that waits for other ranks.
        _kernels.cuda_load_kernels(device)

    @property
    def lost(self) -> list[int]:
        """Ranks that broke the group."""
        return self._lost or self._group.lost()

    def all_reduce(
        self, source: Pieces, target: Pieces, what: Reduction, schedule: Schedule, tag: int
    ) -> bool:
        """Reduce the elements of all ranks' sources; every target gets the result.

        Returns:
            False, on all ranks and with nothing changed, if the ranks make different calls.

        Raises:
            PeerLost: a rank died, stopped or left.
            CudaError: CUDA refused.
        """
        if source.count == 0:
            return self.agree(tag)
        largest = max(what.staged_bytes, target.item_bytes)
        chunk = _chunk_items(schedule.chunk_bytes, largest)
        one_shot = source.count <= min(schedule.one_shot_bytes // what.staged_bytes, chunk)
        run = self._reduce_together if self._in_kernel else self._reduce_by_phases
        for begin in range(0, source.count, chunk):
            end = min(begin + chunk, source.count)
            if not run(source, target, begin, end, what, one_shot, tag if begin == 0 else _GOES_ON):
                return self._differ(begin)
        return True

    def reduce_scatter(
        self, source: Pieces, target: Pieces, what: Reduction, chunk_bytes: int, tag: int
    ) -> bool:
        """Reduce sources of `size` equal parts; rank r gets part r. Returns and raises as `all_reduce`."""
        size, n = self._group.size, target.count
        if n == 0:
            return self.agree(tag)
        # The same columns of all parts at once; each begins at a whole word.
        chunk = _chunk_items(chunk_bytes // size, max(what.staged_bytes, target.item_bytes))
        for begin in range(0, n, chunk):
            end = min(begin + chunk, n)
            stride = -(-(end - begin) // _CHUNK_ITEMS) * _CHUNK_ITEMS
            stream, half = self._begin()
            rows = [
                (address, count, dtype, at + rank * stride * what.staged_bytes, to)
                for rank in range(size)
                for address, count, dtype, at, to in source.gather_rows(
                    rank * n + begin, rank * n + end, what.staged, what.staged_bytes
                )
            ]
            self._pack(rows, self._arena.own.staged(half), stream)
            if not self._meet(stream, tag if begin == 0 else _GOES_ON):
                return self._differ(begin)
            at = self._group.rank * stride * what.staged_bytes
            inputs = [member.staged(half) + at for member in self._arena.members]
            self._reduce(inputs, target, begin, end, half, what, stream)
            self._end(stream)
        return True

    def all_gather(self, source: Pieces, target: Pieces, chunk_bytes: int, tag: int) -> bool:
        """Copy the source of rank r to part r of `size` of every target. Returns and raises as `all_reduce`."""
        n = source.count
        return self._copy(
            source,
            range(self._group.size),
            [(target, r * n) for r in range(self._group.size)],
            chunk_bytes,
            tag,
        )

    def broadcast(self, tensor: Pieces, root: int, chunk_bytes: int, tag: int) -> bool:
        """Copy the elements of one rank to all ranks. Returns and raises as `all_reduce`."""
        return self._copy(tensor, [root], [(tensor, 0)], chunk_bytes, tag)

    def barrier(self, tag: int) -> bool:
        """Wait until every rank has called it and its submitted work is done. Returns and raises as `all_reduce`."""
        self.synchronize()
        return self.agree(tag)

    def agree(self, tag: int) -> bool:
        """Pass a host epoch without a step; return whether all ranks make this call. Raises PeerLost."""
        agreed = self._group.barrier(tag)
        if not agreed:
            # Some of them may have announced something.
            self._mark = next_mark(self._mark)
        return agreed

    def synchronize(self) -> None:
        """Wait until all work that this rank has submitted is done.

        Raises:
            PeerLost: a rank died before its part was done, or broke the group; or the time is over.
        """
        self._await_device(self._timeout_s)
        if self._signals.drained():
            self._lose_ended(self._group.ended())
            if broken := self._group.broken():
                raise PeerLost(broken)
            # A rank that has broken the group passes no epoch any more: this raises its reason.
            self._group.barrier(_GOES_ON)

    def drain(self) -> None:
        """Wait until none of this rank's streams uses memory of other ranks; results are undefined if the group is broken.

        Raises:
            PeerLost: a stream waits for an event of a rank that has ended, or the device is not done in time.
        """
        with suppress(PeerLost):
            self.synchronize()
        self._await_device(self._timeout_s, ended_matter=not self._signals.drains)

    def settle(self) -> None:
        """After an error, include what a step has submitted so far in what `synchronize` and `drain` wait for."""
        # A stream that waits for an event of a dead rank may take no more work.
        if self._begun_in is not None and self._signals.drains:
            with suppress(_kernels.CudaError):
                self._arena.done.record(self._begun_in)
        self._begun_in = None

    # --- One step ---

    def _reduce_by_phases(
        self, source: Pieces, target: Pieces, begin: int, end: int, what: Reduction, one_shot: bool, tag: int
    ) -> bool:
        stream, half = self._begin()
        own, members = self._arena.own, self._arena.members
        rows = source.gather_rows(begin, end, what.staged, what.staged_bytes)
        self._pack(rows, own.staged(half), stream)
        if not self._meet(stream, tag):
            return False
        if one_shot:
            inputs = [member.staged(half) for member in members]
            self._reduce(inputs, target, begin, end, half, what, stream)
        else:
            bounds = slice_bounds(end - begin, what.staged_bytes, len(members))
            first, last = bounds[self._group.rank : self._group.rank + 2]
            inputs = [member.staged(half) + first * what.staged_bytes for member in members]
            self._launch_reduce(inputs, own.reduced(half), last - first, what, target.dtype, stream)
            if not self._meet(stream, _GOES_ON):
                return self._differ(end)
            parts = [
                (member.reduced(half), begin + first, begin + last)
                for member, first, last in zip(members, bounds, bounds[1:], strict=False)
            ]
            self._scatter(target, parts, stream)
        self._end(stream)
        return True

    def _reduce_together(
        self, source: Pieces, target: Pieces, begin: int, end: int, what: Reduction, one_shot: bool, tag: int
    ) -> bool:
        """Reduce in one launch for all phases, and wait for it, because only then the missing ranks are known."""
        stream, half = self._begin()
        own = self._arena.own
        rows = source.gather_rows(begin, end, what.staged, what.staged_bytes)
        self._pack(rows, own.staged(half), stream)
        if not self._agree(stream, tag):
            return False
        to = target.together(begin, end)
        scratch = None
        if to is None:
            scratch = cuda.empty([(end - begin) * target.item_bytes], "uint8", self._device)
            to = scratch.data_ptr()
        self._epoch = (self._epoch + 1) & 0xFFFFFFFF
        _kernels.cuda_reduce_together(
            [(member.staged(half), member.reduced(half), member.flags) for member in self._arena.members],
            self._group.rank,
            to,
            own.missing,
            end - begin,
            in_dtype=what.staged,
            out_dtype=target.dtype,
            op=what.op,
            scale=what.scale,
            one_shot=one_shot,
            epoch=self._epoch,
            deadline_s=self._timeout_s,
            stop=self._signals.stop,
            stream=stream,
        )
        if scratch is not None:
            self._scatter(target, [(scratch.data_ptr(), begin, end)], stream)
        self._end(stream)
        # The kernel always ends: it waits at most twice, each time with a deadline.
        self._await_device(3 * self._timeout_s)
        if missing := self._arena.missing_ranks():
            # Then the kernel did not wait for the others until the end.
            self._lose_ended(missing)
            self._lose(missing, f"waited {self._timeout_s:g} s inside a kernel")
        return True

    def _copy(
        self,
        source: Pieces,
        roots: Iterable[int],
        targets: list[tuple[Pieces, int]],
        chunk_bytes: int,
        tag: int,
    ) -> bool:
        """Copy the sources of the roots to all ranks: that of the n-th root to the n-th target, from an element on."""
        if source.count == 0:
            return self.agree(tag)
        roots = list(roots)
        chunk = _chunk_items(chunk_bytes, source.item_bytes)
        for begin in range(0, source.count, chunk):
            end = min(begin + chunk, source.count)
            stream, half = self._begin()
            if self._group.rank in roots:
                rows = source.gather_rows(begin, end, source.dtype, source.item_bytes)
                self._pack(rows, self._arena.own.staged(half), stream)
            if not self._meet(stream, tag if begin == 0 else _GOES_ON):
                return self._differ(begin)
            parts = [
                (self._arena.members[root].staged(half), first + begin, first + end)
                for root, (_, first) in zip(roots, targets, strict=True)
            ]
            self._scatter(targets[0][0], parts, stream)
            self._end(stream)
        return True

    # --- Halves, marks, epochs ---

    def _begin(self) -> tuple[int, int]:
        """Begin a step: make the current stream wait until the next half may be written; return stream and half."""
        if broken := self._group.broken():
            raise PeerLost(broken)
        half = self._taken & 1
        stream = cuda.current_stream(self._device)
        self._arena.done.wait(stream)
        self._begun_in = stream
        return stream, half

    def _agree(self, stream: int, tag: int) -> bool:
        """Pass the host epoch of a step; if the ranks differ, record `done` for the next step, and return False."""
        agreed = self.agree(tag)
        if not agreed:
            self._arena.done.record(stream)
            self._begun_in = None
        return agreed

    def _meet(self, stream: int, tag: int) -> bool:
        """Announce a mark in this rank's stream, and make it wait for all ranks; return False if they differ."""
        mark = next_mark(self._mark)
        self._signals.announce(mark, stream)
        if not self._agree(stream, tag):
            return False
        self._mark = mark
        self._signals.want(mark)
        self._check_ended()
        self._signals.wait(mark, stream)
        return True

    def _end(self, stream: int) -> None:
        self._arena.done.record(stream)
        self._begun_in = None
        self._taken += 1

    def _await_device(self, timeout_s: float, *, ended_matter: bool = True) -> None:
        """Wait until the last step is done; raise PeerLost if it waits for a rank that has ended."""
        done = self._arena.done
        began = time.monotonic()
        pause = _FIRST_PAUSE_S
        while not done.is_done():
            waited = time.monotonic() - began
            if waited < _SPIN_S:
                time.sleep(0)  # lets other threads run
                continue
            if ended_matter:
                self._check_ended()
            if waited > timeout_s:
                self._lose(
                    self._signals.undone(), f"device {self._device} was not done after {timeout_s:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _check_ended(self) -> None:
        """Raise PeerLost if a rank has ended before it has announced what this rank's streams wait for."""
        if self._group.ended():
            self._lose_ended(self._signals.undone())

    def _lose_ended(self, undone: Iterable[int]) -> None:
        """Raise PeerLost if some of these ranks have ended."""
        ended = self._group.ended()
        if lost := [rank for rank in undone if rank in ended]:
            self._lose(lost, "the work of a rank that has ended is incomplete")

    def _lose(self, ranks: Iterable[int], reason: str) -> NoReturn:
        self._lost = list(ranks)
        lost = ", ".join(self._group.describe(rank) for rank in self._lost)
        text = f"{reason}: {lost}" if lost else reason
        # Of a group that this rank knows to be broken, what is new counts. Else the reason of a rank that gave up before is
        # raised: this one may only see what that has led to.
        known = (PeerLost,) if self._group.broken() else ()
        with suppress(ConfigError, ForkedError, *known):
            self._group.give_up(text)
        raise PeerLost(f"{text}; the group of {self._group.size} is broken")

    def _differ(self, begun: int) -> bool:
        if begun:
            raise ConfigError("the ranks of a group do different things; start it again")
        return False

    # --- Launches ---

    def _pack(self, rows: list[tuple[int, int, str, int, str]], slot: int, stream: int) -> None:
        _kernels.cuda_pack(rows, slot=slot, slot_bytes=self._arena.own.staging_bytes, stream=stream)

    def _scatter(self, target: Pieces, parts: list[tuple[int, int, int]], stream: int) -> None:
        rows, lowest, n_bytes = target.scatter_rows(parts)
        if rows:
            _kernels.cuda_pack(rows, slot=lowest, slot_bytes=n_bytes, stream=stream)

    def _reduce(
        self,
        inputs: list[int],
        target: Pieces,
        begin: int,
        end: int,
        half: int,
        what: Reduction,
        stream: int,
    ) -> None:
        """Reduce into elements `begin` to `end` of the target, through `reduced` if they are not contiguous."""
        output = target.together(begin, end)
        to = self._arena.own.reduced(half) if output is None else output
        self._launch_reduce(inputs, to, end - begin, what, target.dtype, stream)
        if output is None:
            self._scatter(target, [(to, begin, end)], stream)

    def _launch_reduce(
        self, inputs: list[int], to: int, count: int, what: Reduction, out: str, stream: int
    ) -> None:
        if count:
            _kernels.cuda_reduce(
                inputs,
                to,
                count,
                in_dtype=what.staged,
                out_dtype=out,
                op=what.op,
                scale=what.scale,
                stream=stream,
            )


def _chunk_items(chunk_bytes: int, item_bytes: int) -> int:
    return max(1, chunk_bytes // item_bytes // _CHUNK_ITEMS) * _CHUNK_ITEMS
