"""All rows of a flow: what each has, which functions have used it, and when it may go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...declare.plan import FlowPlan, FunctionPlan
from .losses import learned_from, make_again
from .queue import ReadyQueue
from .records import Counts, Group, Tag, Taken

__all__ = ["Counts", "RowTable", "Taken"]


class RowTable:
    """State of all rows. Work for one row and function does not depend on the number of rows.

    Rows of a group stay together: what is done is done with all of them, and they have the same columns. Columns and
    functions are small numbers inside, and bits of integers. Which workers hold the values is in `Holdings`.

    Args:
        plan: Plan of the flow.
    """

    def __init__(self, plan: FlowPlan) -> None:
        self._plan = plan
        self._columns = {name: number for number, name in enumerate(plan.columns)}
        self._partitions = {name: number for number, name in enumerate(plan.partitions)}
        self._groups: list[dict[int, Group]] = [{} for _ in self._partitions]
        #: Group of each row, by its id.
        self._rows: dict[int, Group] = {}
        self._next_id = 0
        self._n_bytes = 0
        self.counts = {name: Counts() for name in plan.partitions}
        self._queues = [self._queue(number, one) for number, one in enumerate(plan.functions)]
        self._by_name = {queue.plan.name: queue for queue in self._queues}
        # By partition its functions, and the number of the one that makes a column.
        self._own = [
            [queue for queue in self._queues if queue.partition == partition]
            for partition in range(len(self._partitions))
        ]
        self._makers = [
            {self._columns[column]: queue.number for queue in own for column in queue.plan.outputs}
            for own in self._own
        ]
        # By partition and column, the functions that read the column.
        self._readers = [
            [[queue for queue in own if queue.needs >> column & 1] for column in range(len(self._columns))]
            for own in self._own
        ]
        # By training function, what it learns from.
        self._learned: dict[int, int] = {}
        for own in self._own:
            self._learned |= learned_from(own)
        self._all_done = [sum(queue.bit for queue in own) for own in self._own]
        # By function, distinct groups that it has taken, and that it is through with; without those that were dropped.
        self._n_begun = [0] * len(self._queues)
        self._n_through = [0] * len(self._queues)
        self._freed: list[int] = []
        #: Rows that functions make again which were through with them.
        self.n_made_again = 0
        #: Rows that a function goes without, each counted for each function; see `Group.without`.
        self.n_left_out = 0
        #: How often columns were lost or made void.
        self.n_disturbed = 0

    # --- Rows come and go ---

    def room(self, partition: str) -> int:
        """Return how many groups may be admitted now."""
        counts, plan = self.counts[partition], self._plan.partitions[partition]
        return plan.slots - (counts.live - counts.complete * plan.groups_per_step)

    def admit(
        self, partition: str, *, n_bytes: int = 0, tags: Sequence[Mapping[str, Tag]] | None = None
    ) -> tuple[int, ...]:
        """Add one group of rows with the columns of the source; returns their ids.

        Args:
            partition: Name of the partition of the rows.
            n_bytes: Bytes of the columns, which all rows of the group share.
            tags: Tags of each row.

        Raises:
            ValueError: there is no slot, or the tags are not as many as rows.
        """
        if self.room(partition) < 1:
            raise ValueError(
                f"no slot for a group of partition {partition!r}: {self._plan.partitions[partition].slots} are used"
            )
        if tags is not None and len(tags) != self._plan.group:
            raise ValueError(f"{len(tags)} tags for {self._plan.group} rows")
        counts, number = self.counts[partition], self._partitions[partition]
        ids = range(self._next_id, self._next_id + self._plan.group)
        self._next_id = ids.stop
        group = Group(counts.admitted, number, ids, len(self._queues), counts.complete)
        group.tags = [dict(one) for one in tags] if tags is not None else None
        counts.admitted += 1
        self._groups[number][group.index] = group
        self._rows.update(dict.fromkeys(ids, group))
        group.n_bytes = n_bytes
        self._n_bytes += n_bytes
        self.wrote(ids, self._plan.source[partition])
        return tuple(ids)

    def wrote(
        self, ids: Sequence[int], columns: Iterable[str], *, n_bytes: int = 0, version: int | None = None
    ) -> None:
        """Note that rows have columns.

        Args:
            ids: Ids of the rows of whole groups; those that have gone are skipped.
            columns: Names of the columns.
            n_bytes: Bytes that the columns add to each row.
            version: Number of steps that were complete when the weights that made them were; None keeps that of the
                admission.
        """
        numbers = [self._columns[column] for column in columns]
        mask, size = sum(1 << number for number in numbers), self._plan.group
        readers: dict[int, list[ReadyQueue]] = {}
        for row_id in ids[::size]:
            group = self._rows.get(row_id)
            if group is None:
                continue
            if version is not None:
                group.version = version
            before = group.have
            if not mask & ~before:
                continue
            group.n_bytes += n_bytes * size
            self._n_bytes += n_bytes * size
            maker = self._makers[group.partition].get(numbers[0])
            if maker is not None:
                group.sizes[maker] = n_bytes * size
            group.have = before | mask
            if group.partition not in readers:
                own = self._readers[group.partition]
                readers[group.partition] = list({queue: None for number in numbers for queue in own[number]})
            for queue in readers[group.partition]:
                is_new = before & queue.needs != queue.needs and group.have & queue.needs == queue.needs
                if is_new and queue.may_take(group):
                    queue.push(group)

    def drop(self, ids: Iterable[int], reason: str) -> int:
        """Drop the groups of rows, so that the source refills their slots; returns how many groups.

        Raises:
            ValueError: a training function has used one of them already.
        """
        groups = self._groups_of(ids)
        used = [group for group in groups if self._training(group)]
        if used:
            names = [queue.plan.name for queue in self._training(used[0])]
            raise ValueError(
                f"rows {list(used[0].ids)} are dropped ({reason}), but {', '.join(names)} has used them; "
                "have a column of what drops rows among its inputs"
            )
        for group in groups:
            counts = self.counts[list(self._partitions)[group.partition]]
            counts.dropped[reason] = counts.dropped.get(reason, 0) + 1
            for queue in self._queues:
                if queue.partition == group.partition:
                    if group.places[queue.number] >= 0:
                        self._n_begun[queue.number] -= 1
                    if group.done & queue.bit:
                        self._n_through[queue.number] -= 1
            self._remove(group)
        for queue in self._queues:
            queue.choose()  # what was dropped may have been the oldest, for which younger groups had to wait
        return len(groups)

    def _training(self, group: Group) -> list[ReadyQueue]:
        """Return the training functions that use a group, or have."""
        own = [queue for queue in self._own[group.partition] if queue.plan.is_strict]
        return [q for q in own if (group.taken | group.done) & q.bit or (group.uses or {}).get(q.number)]

    def lose(self, lost: Mapping[int, Iterable[str]]) -> None:
        """A worker is gone with all that it held.

        The functions that make what is lost run again if a function that has yet to run needs it, and so do those between
        the two, see `losses`.

        Args:
            lost: Columns without a holder, by the first row of their group; those that are not there are skipped.
        """
        self.n_disturbed += 1
        hit = []
        for first, columns in lost.items():
            group = self._rows.get(first)
            if group is not None and (gone := self._mask(columns) & group.have):
                group.is_hit = True
                hit.append(group)
                self._unmake(group, gone)
        for group in hit:
            make_again(self, group)

    def _unmake(self, group: Group, lost: int) -> None:
        before = group.have
        group.have &= ~lost
        for queue in self._own[group.partition]:
            if before & queue.needs == queue.needs and group.have & queue.needs != queue.needs:
                queue.discard(group)
            if before & queue.makes and not group.have & queue.makes:
                group.n_bytes -= group.sizes[queue.number]
                self._n_bytes -= group.sizes[queue.number]

    # --- Functions take rows ---

    def next_size(self, function: str, *, is_last: bool = False) -> int:
        """Return of how many rows the next call of a function would be; 0 if too few are ready."""
        return self._by_name[function].next_size(is_last=is_last) * self._plan.group

    def n_ready(self, function: str) -> int:
        """Return how many rows a function could take, up to one pass."""
        return self._by_name[function].n_ready * self._plan.group

    def take(self, function: str, *, is_last: bool = False) -> Taken:
        """Take the rows of the next call of a function.

        Raises:
            ValueError: too few are ready.
        """
        queue = self._by_name[function]
        n = queue.next_size(is_last=is_last)
        if not n:
            raise ValueError(
                f"{function} has {self.n_ready(function)} ready rows of {queue.plan.least * self._plan.group}"
            )
        before = queue.n_taken
        groups = queue.take(n, is_last=is_last)
        return self._begun(queue, groups, queue.n_taken - before)

    def take_ids(self, function: str, ids: Iterable[int]) -> Taken:
        """Take these rows, which a caller has chosen.

        Raises:
            ValueError: a row is not there, not ready for the function, or its group is not complete in `ids`.
        """
        queue, wanted = self._by_name[function], list(ids)
        gone = [row_id for row_id in wanted if row_id not in self._rows]
        if gone:
            raise ValueError(f"{function}: rows {gone[:8]} are not in the flow; {len(gone)} of {len(wanted)}")
        groups = self._groups_of(wanted)
        if len(groups) * self._plan.group != len(set(wanted)) or len(set(wanted)) != len(wanted):
            raise ValueError(
                f"{function}: {len(wanted)} ids are not those of whole groups of {self._plan.group} rows"
            )
        for group in groups:
            if not group.staged & queue.bit or group.without & queue.bit:
                lacking = self.lacking(group.ids[0], function)
                why = (
                    f"lack {', '.join(lacking)}"
                    if lacking
                    else "were used by it, or belong to another partition"
                )
                raise ValueError(f"{function}: rows {list(group.ids[:8])} {why}")
        for group in groups:
            group.taken |= queue.bit
            queue.discard(group)
        return self._begun(queue, groups, 0)

    def done(self, function: str, taken: Taken) -> None:
        """A function is through with a use of the rows of a call; groups that all are through with are removed."""
        queue = self._by_name[function]
        for group in taken.groups:
            if group.index not in self._groups[group.partition]:
                continue  # it was dropped
            group.taken &= ~queue.bit
            self._use(group, queue)
            if group.done == self._all_done[group.partition]:
                self._remove(group)
            elif group.is_hit:
                make_again(self, group)
        queue.choose()
        self._complete(queue.plan.partition)

    def _use(self, group: Group, queue: ReadyQueue) -> None:
        if group.stale & queue.bit:
            # What was made of the old inputs is void.
            group.stale &= ~queue.bit
            group.again |= queue.bit
            self._offer(group, queue)
            return
        if queue.plan.reuse > 1:
            group.uses = group.uses or {}
            group.uses[queue.number] = uses = group.uses.get(queue.number, 0) + 1
            if uses < queue.plan.reuse:
                self._offer(group, queue)
                return
        group.again &= ~queue.bit
        group.done |= queue.bit
        self._n_through[queue.number] += 1

    def give_back(self, function: str, taken: Taken, *, was_begun: bool = True) -> None:
        """A call was not made (`was_begun`: in part): its rows are as before, but that they do not wait for a whole pass."""
        queue = self._by_name[function]
        queue.give_back(taken.number, taken.n_counted if queue.plan.is_strict else 0, was_begun=was_begun)
        own = [group for group in taken.groups if group.index in self._groups[group.partition]]
        # Training functions take groups in an order that does not depend on what was given back.
        are_last = min((group.places[queue.number] for group in own), default=0) + len(own)
        is_last = queue.plan.is_strict and are_last == self._n_begun[queue.number]
        for group in own:
            group.taken &= ~queue.bit
            group.stale &= ~queue.bit
            if taken.n_counted and not queue.plan.is_strict:
                group.again |= queue.bit
            elif is_last and not group.uses:
                group.places[queue.number] = -1
                self._n_begun[queue.number] -= 1
        queue.put_back(own)
        for group in own:
            make_again(self, group, None if queue.plan.is_strict else queue)

    def current(self, function: str, taken: Taken) -> tuple[int, ...]:
        """Return the rows of a call of which the results count: the others have gone, or its inputs are made again."""
        bit = self._by_name[function].bit
        return tuple(
            row_id
            for group in taken.groups
            if group.index in self._groups[group.partition] and not (group.stale | group.without) & bit
            for row_id in group.ids
        )

    def has_inputs(self, function: str, taken: Taken) -> bool:
        """Return whether all rows of a call that are there have its inputs, still."""
        queue = self._by_name[function]
        return all(
            group.have & queue.needs == queue.needs or bool(group.without & queue.bit)
            for group in taken.groups
            if group.index in self._groups[group.partition]
        )

    # --- What is known ---

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._rows

    def n_groups(self, partition: str) -> int:
        """Return how many groups of a partition there are."""
        return len(self._groups[self._partitions[partition]])

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows, each column counted once; those of the source once for a group."""
        return self._n_bytes

    def freed(self) -> list[int]:
        """Return the rows that were removed since the last time; their bytes may go."""
        freed, self._freed = self._freed, []
        return freed

    def tags(self, row_id: int) -> dict[str, Tag]:
        """Return the tags of a row; what is changed in them stays."""
        group = self._rows[row_id]
        if group.tags is None:
            group.tags = [{} for _ in group.ids]
        return group.tags[row_id - group.ids.start]

    def is_hit(self, row_id: int) -> bool:
        """Return whether a holder of a column of the row, or of its group, was lost."""
        return self._rows[row_id].is_hit

    def lacking(self, row_id: int, function: str) -> list[str]:
        """Return the inputs of a function that a row does not have."""
        have = self._rows[row_id].have
        return [name for name in self._by_name[function].plan.inputs if not have >> self._columns[name] & 1]

    def missing(self, function: str) -> dict[str, int]:
        """Return, for each input of a function, how many rows that it has not used lack it. It looks at all rows."""
        queue = self._by_name[function]
        counts = dict.fromkeys(queue.plan.inputs, 0)
        # A list: another thread may ask while rows come and go.
        for group in list(self._groups[queue.partition].values()):
            if not (group.taken | group.done) & queue.bit:
                for name in counts:
                    counts[name] += 0 if group.have >> self._columns[name] & 1 else len(group.ids)
        return {name: n for name, n in counts.items() if n}

    def waiting(self, partition: str, functions: Iterable[str]) -> bool:
        """Return whether one of some functions still has rows to use, ready or not. It looks at all rows."""
        bits = sum(self._by_name[name].bit for name in functions)
        return any(group.done & bits != bits for group in self._groups[self._partitions[partition]].values())

    # --- Inside ---

    def _queue(self, number: int, plan: FunctionPlan) -> ReadyQueue:
        partition = self._partitions[plan.partition]
        return ReadyQueue(plan, number, partition, self._plan.window, self._groups[partition], self._columns)

    def _mask(self, columns: Iterable[str]) -> int:
        return sum(1 << self._columns[column] for column in columns)

    def _groups_of(self, ids: Iterable[int]) -> list[Group]:
        """Return the groups of rows that are there, each once, in the order of the ids."""
        return list(dict.fromkeys(self._rows[row_id] for row_id in ids if row_id in self._rows))

    def _begun(self, queue: ReadyQueue, groups: Sequence[Group], n_counted: int) -> Taken:
        per_step = self._plan.partitions[queue.plan.partition].groups_per_step
        begun, age, step, place = self._n_begun[queue.number], 0, 0, 0
        for group in groups:
            # A group that is used again keeps the place of its first use.
            place = group.places[queue.number]
            if place < 0:
                group.places[queue.number] = place = begun
                begun += 1
            step = place // per_step
            age = max(age, step - group.version)
        self._n_begun[queue.number] = begun
        ids = tuple(row_id for group in groups if not group.without & queue.bit for row_id in group.ids)
        use = max((group.uses or {}).get(queue.number, 0) for group in groups)
        ends_step = (place + 1) % per_step == 0 and use + 1 == queue.plan.reuse
        is_again = any(group.again & queue.bit for group in groups)
        number, is_repeat = queue.number_of_call(is_again=is_again) if ids else (0, False)
        age = age if queue.plan.is_strict else 0
        return Taken(ids, tuple(groups), step, age, use, ends_step, number, is_repeat, n_counted)

    def _offer(self, group: Group, queue: ReadyQueue) -> None:
        if queue.may_take(group):
            queue.push(group)

    def _remove(self, group: Group) -> None:
        self._n_bytes -= group.n_bytes
        for row_id in group.ids:
            del self._rows[row_id]
        self._freed += group.ids
        del self._groups[group.partition][group.index]
        for queue in self._queues:
            if group.staged & queue.bit:
                queue.discard(group)

    def _complete(self, partition: str) -> None:
        number, plan = self._partitions[partition], self._plan.partitions[partition]
        through = min(self._n_through[queue.number] for queue in self._queues if queue.partition == number)
        self.counts[partition].complete = max(
            self.counts[partition].complete, through // plan.groups_per_step
        )
