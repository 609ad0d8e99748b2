"""Common saves while a flow runs: when one begins, what it holds, and how a flow goes on from it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError, FlowError
from ..declare.calls import TRAIN
from ..declare.declaration import Declaration
from ..declare.hooks import Hook, Load
from ..declare.plan import FlowPlan
from ..declare.roles import Placement
from ..engine.admission import Admission, Again, Sources
from ..engine.runner import Runner
from ..master.order.steps import Kind, Step
from ..master.rows.made import bound_of, made_groups
from ..master.rows.saved import NEW, SavedGroup, restore_rows, saved_rows
from ..process.state import files
from ..process.state.random_state import process_state, restore_process
from ..store.values import Value
from ..workers.backend import Backend
from .folder import JournalFolder, kept_text
from .machine import Move, SaveMachine, Seen
from .options import Journal, check_steps
from .records import CommonSave
from .roles import kept_roles, load_hooks, publishing, save_hooks
from .rows import FILE as ROWS_FILE
from .rows import KeptRows, RowWriter

__all__ = ["CommonSaves"]

_log = logging.getLogger(__name__)

_FILE = "master.pt"


@dataclass(frozen=True)
class _Begun:
    """A save that workers write.

    Attributes:
        call: Number of the call.
        partial: Folder of the save while it is written.
        save: Content of the record.
        again: Rows that are issued again by a flow that continues from it.
        n_since: Elements of sources that had been read since the save before.
        random: State of the random numbers of this process.
        n_disturbed: See `RowTable`; the count when the save began.
        n_made: Groups of which functions have made something.
        writer: Writer of what they have made; None: there is nothing to write.
    """

    call: int
    partial: Path
    save: CommonSave
    again: tuple[Again, ...]
    n_since: int
    random: dict[str, Any]
    n_disturbed: int
    n_made: int
    writer: RowWriter | None


class CommonSaves:
    """The journal of a flow.

    Between the last training call of a step and the first one of the next, each worker saves its roles. That is a hook
    like others: its place is that of its ticket, and all workers get theirs at once. Training functions take no rows of
    later steps before these tickets are given; other functions go on. The save counts when all workers are through, and
    the journal says so.

    Args:
        journal: Journal options of the user.
        declaration: Declaration of the flow.
        plan: Plan of the flow.
        sources: Sources of the flow.

    Attributes:
        journal: Journal options of the user.
        machine: Decides when a save begins and counts.
        asked: Number of the last step that callers have asked for.

    Raises:
        ConfigError: see `check_steps`.
    """

    def __init__(self, journal: Journal, declaration: Declaration, plan: FlowPlan, sources: Sources) -> None:
        check_steps(plan, journal.save_every)
        self.journal = journal
        self.machine = SaveMachine(journal.save_every, journal.max_restarts)
        self.asked = 0
        self._path = Path(journal.folder).absolute()
        self._declaration = declaration
        self._plan = plan
        self._sources = sources
        self._folder: JournalFolder | None = None
        self._begun: _Begun | None = None
        # Of the last save, and what was read of the sources since then: sources are not read twice by one process.
        self._again: tuple[Again, ...] = ()
        self._since: list[Again] = []
        self._random: dict[str, Any] = {}
        self._n_made = 0
        # The folder of that save: another object may have saved since this one was open.
        self._known: str | None = None
        self._kept: KeptRows | None = None
        self._loaded: dict[Placement, Path] = {}

    def attach(self, runner: Runner, admission: Admission, backend: Backend) -> None:
        """Use these from now on."""
        self._runner, self._admission, self._backend = runner, admission, backend
        admission.on_read = self._note_read

    def open(self) -> None:
        """Open the journal.

        Raises:
            ConfigError: it is in use, of another flow, damaged, or empty although this object has saved there.
            FlowError: the operating system refused it, or the last save cannot be read.
        """
        self._folder = JournalFolder(self._path, self._declaration.lines())
        if self._known is not None and self.last is None:
            raise ConfigError(
                f"journal {self._path} has no save, and this flow goes on from {self._known}; restore the folder, or make "
                "the flow anew"
            )

    def close(self) -> None:
        """Release the journal; what was not whole yet does not count. Idempotent."""
        self.drop_begun()
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    # --- Saves ---

    @property
    def last(self) -> CommonSave | None:
        """The save that counts."""
        return self._folder.last if self._folder is not None else None

    @property
    def is_open(self) -> bool:
        """Whether a save has begun that does not count yet."""
        return self._begun is not None

    def advance(self, n_yielded: int) -> None:
        """Begin a save if one is due, or have one count that all workers are through with.

        Args:
            n_yielded: steps that were yielded; a save counts after its step was.

        Raises:
            FlowError: it cannot be written; the one before counts.
        """
        folder = self._folder
        while folder is not None:
            if self._begun is not None and self._begun.writer is not None:
                self._begun.writer.release()
            move = self.machine.move(self._seen(n_yielded))
            self._runner.master.hold = self.machine.hold
            if move is Move.BEGIN:
                self._begin(folder)
            elif move is not None:
                assert self._begun is not None
                self._end(folder, self._begun, move)
            # When one has ended the next one may be due; it begins here, so that a step that is the last one is saved, too.
            if move is None or move is Move.WITHDRAW:
                return

    def note_yielded(self, step: int) -> bool:
        """A step is yielded; returns whether one of this number was before."""
        if self._folder is None:
            return False
        is_repeated = step <= self._folder.yielded
        self._folder.note_yielded(step)
        return is_repeated

    def count_restart(self, lost: FlowError, n_yielded: int) -> None:
        """All workers are started again, because one was lost.

        Args:
            lost: names it.
            n_yielded: steps that were yielded.
        """
        assert self.last is not None
        self.machine.goes_back()
        first = self.last.step + 1
        again = f"steps {first} to {n_yielded} are" if n_yielded > first else f"step {first} is"
        _log.warning(
            "%s; all workers start again from the common save of step %d, and %s done again (start %d of at most %d)",
            *(lost, self.last.step, again, self.machine.n_restarts, self.journal.max_restarts),
        )

    def drop_begun(self) -> None:
        """Drop a save that does not count yet."""
        self.stop_rows()
        begun, self._begun = self._begun, None
        self.machine.was_dropped()
        if begun is not None:
            shutil.rmtree(begun.partial, ignore_errors=True)

    def stop_rows(self) -> None:
        """Read no more rows for a save that does not count yet: their memory may go."""
        if self._begun is not None and self._begun.writer is not None:
            self._begun.writer.stop()

    # --- A flow goes on ---

    def load_steps(self) -> tuple[Step, ...]:
        """Return the steps in which workers load the last save; empty if there is none.

        Raises:
            FlowError: a source is another one than it was.
        """
        if self._folder is None or self.last is None:
            return ()
        if self._known == self.last.name:
            # Also what this process has written may have been damaged since then.
            try:
                self._folder.choose()
            except (ConfigError, OSError) as error:
                raise FlowError(f"the flow cannot go back: {error}") from None
        save = self.last
        path = self._path / save.name
        if self._known != save.name:
            found = files.read(path / _FILE)
            since: list[Again] = []
            for name, n_read in save.n_read.items():
                state = found["sources"].get(name)
                since += self._read_behind(name, n_read, state)
                self._sources.restore(name, n_read, state)
            self._again = tuple(zip(save.groups, found["items"], strict=True))
            self._random = found["random"]
            self._n_made = found.get("made", 0)
            self._since, self._known = since, save.name
        steps = _steps(Kind.MAIN, load_hooks(self._declaration, path))
        self._kept = None
        if self._n_made or (path / ROWS_FILE).exists():
            n_used, room = save.rows.partitions[TRAIN].used, self._runner.master.rows.room(TRAIN)
            max_bytes = self._admission.max_bytes
            self._kept = KeptRows(path / ROWS_FILE, self._again, self._plan, room, n_used, max_bytes)
            steps += self._kept.steps(self._declaration, self._backend.beside())
        return steps

    def hooks_behind(self) -> Sequence[Hook]:
        """Return the hooks that run when a save is loaded: they bring weights to roles of which it has none."""
        loads = [Load((role,), folder=folder) for role, folder in self._loaded.items()]
        return [*loads, *publishing(self._declaration)]

    def restore(self) -> None:
        """Have the master go on from the last save, after all workers have loaded it."""
        save = self.last
        self.machine.goes_on(save.step if save is not None else None)
        self._runner.master.hold = self.machine.hold
        if save is None:
            self._admission.issue_again(self._since)
            return
        restore_rows(self._runner.master.rows, save.rows)
        self._runner.restore(save.versions, save.through, save.n_failed)
        self._admission.issue_again((*self._admit_kept(), *self._since))
        restore_process(self._random)

    def _admit_kept(self) -> Sequence[Again]:
        """Admit groups of which the save has what functions had made; returns the others."""
        kept, self._kept = self._kept, None
        if kept is None:
            return self._again
        has_heads = TRAIN in self._runner.datasets
        if has_heads:
            self._admission.issue_again(one for one in self._again if one[0].partition == TRAIN)
        left = kept.admit(self._runner.take_loaded(), self._runner, self._admission.admit_again)
        return [one for one in left if not (has_heads and one[0].partition == TRAIN)]

    def note_loaded(self, role: Placement, folder: Path) -> None:
        """A role was loaded by hand; it is again behind a save that does not have its weights."""
        if role.frozen and role not in kept_roles(self._declaration):
            self._loaded[role] = folder

    # --- Inside ---

    def _seen(self, n_yielded: int) -> Seen:
        master, begun = self._runner.master, self._begun
        complete, is_whole = master.rows.counts[TRAIN].complete, not master.awaited
        if begun is None:
            return Seen(complete, n_yielded, is_whole)
        has_failed = begun.call in self._runner.errors
        return Seen(
            complete,
            n_yielded,
            is_whole,
            is_idle=not master.order.tickets,
            is_placed=not master.order.is_waiting(begun.call),
            is_disturbed=begun.n_disturbed != master.rows.n_disturbed,
            is_over=has_failed or self._runner.posted[begun.call] is not None,
            has_failed=has_failed,
            has_rows=begun.writer is None or begun.writer.is_done,
        )

    def _begin(self, folder: JournalFolder) -> None:
        step = self._runner.master.rows.counts[TRAIN].complete
        partial = folder.begin(step)
        save, again = self._state(step, folder.name_of(partial))
        states = {name: self._sources.state(name) for name in save.n_read}
        random = process_state()
        made = made_groups(self._runner.master.rows) if self.journal.rows else []
        items = [item for _, item in again]
        found = {"random": random, "items": items, "sources": states, "made": len(made)}
        try:
            files.write(partial / _FILE, "rows and positions of sources", found)
        except (OSError, FlowError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise self._failed(step, error) from None
        n_disturbed = self._runner.master.rows.n_disturbed
        writer = None
        if made:
            path, bound = partial / ROWS_FILE, bound_of(self._plan)
            writer = RowWriter(path, made, bound, self._runner.held, self._backend)
        call = self._runner.post_steps(
            "common save", _steps(Kind.PRE, save_hooks(self._declaration, partial))
        )
        if writer is not None:
            writer.start()
        self._begun = _Begun(
            call, partial, save, again, len(self._since), random, n_disturbed, len(made), writer
        )
        self.machine.has_begun(step)

    def _state(self, step: int, name: str) -> tuple[CommonSave, tuple[Again, ...]]:
        rows, groups = saved_rows(self._runner.master.rows)
        waiting = self._admission.waiting
        again = (*((group, self._item(group, row_id)) for group, row_id in groups), *waiting)
        versions, through = self._runner.saved()
        save = CommonSave(
            step,
            name,
            rows,
            tuple(group for group, _ in again),
            dict(self._sources.n_read),
            versions,
            through,
            self._runner.n_failed,
        )
        return save, again

    def _item(self, group: SavedGroup, row_id: int) -> dict[str, Value]:
        element = self._runner.datasets.item_of(row_id)
        if element is not None:
            return element  # of a dataset on workers, which read it again
        columns = self._plan.source[group.partition]
        held = self._runner.held
        places = [held.places([row_id], column)[0] for column in columns]
        return dict(zip(columns, self._backend.values(places), strict=True))

    def _end(self, folder: JournalFolder, begun: _Begun, move: Move) -> None:
        runner, step = self._runner, begun.save.step
        if move is Move.WITHDRAW:
            runner.master.order.cancel(begun.call, "a worker was lost")
        elif move is Move.COMMIT:
            self._commit(folder, begun)
        else:
            del runner.posted[begun.call]
            failed = runner.errors.pop(begun.call, None)
            self.drop_begun()
            if move is Move.FAIL and failed is not None:
                raise self._failed(step, failed[0])
            text = "there is no common save of step %d, as a worker was lost; %s"
            _log.warning(text, step, kept_text(self.last))

    def _commit(self, folder: JournalFolder, begun: _Begun) -> None:
        """Have a save count; its rows are awaited."""
        step, writer = begun.save.step, begun.writer
        try:
            if writer is not None:
                writer.end()
        except (OSError, FlowError) as error:
            self.drop_begun()
            raise self._failed(step, error) from None
        if writer is not None and writer.n_unread:
            text = "%d values of rows are not in the common save of step %d; after a load they are made again"
            _log.warning(text, writer.n_unread, step)
        try:
            folder.commit(begun.partial, begun.save)
        except FlowError:
            self.drop_begun()
            raise
        del self._runner.posted[begun.call]
        self._begun = None
        self._again, self._random, self._n_made = begun.again, begun.random, begun.n_made
        del self._since[: begun.n_since]
        self._known = begun.save.name
        self.machine.has_counted()

    def _failed(self, step: int, error: Exception) -> FlowError:
        return FlowError(
            f"journal {self._path}: the common save of step {step} failed; {kept_text(self.last)}: {error}"
        )

    def _read_behind(self, partition: str, n_read: int, state: Any) -> Sequence[Again]:
        """Return what this object has read of a source that a save of another one does not know of.

        Args:
            partition: Partition of the source.
            n_read: Number of elements that the other one had read.
            state: See `Sources.restore`.

        Raises:
            FlowError: this one has gone on from elements behind those, and they cannot be read again.
        """
        n_own = self._sources.n_read[partition]
        since = [one for one in self._since if one[0].partition == partition]
        if state is not None or n_own <= n_read:
            return ()
        if n_own - n_read > len(since):
            raise FlowError(
                f"journal {self._path} has a save with {n_read} elements of the source of partition {partition!r}, and "
                f"this flow has read {n_own}, of which it keeps {len(since)}; make the flow anew"
            )
        return since[n_read - n_own :]

    def _note_read(self, partition: str, item: dict[str, Value]) -> None:
        self._since.append((SavedGroup(partition, NEW, ()), item))


def _steps(kind: Kind, hooks: Sequence[tuple[frozenset[int], Hook]]) -> tuple[Step, ...]:
    return tuple(Step(kind, workers, hook, 0.1) for workers, hook in hooks)
