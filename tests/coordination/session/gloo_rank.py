"""A rank that reduces by gloo, which it meets through the store of its session."""

from __future__ import annotations

import json
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.session.session import Session
from softs_fast.coordination.session.store import SessionStore
from softs_fast.errors import SoftsError


class Member:
    """A listener that waits for one table."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.table: m.Table | None = None
        self.has_table = threading.Event()
        self.session: Session

    def hello(self) -> m.Hello:
        """Return the first message."""
        return m.Hello("job", f"w{self.rank}", 1, self.rank)

    def received(self, message: m.ToWorker) -> None:
        """Say Ready once."""
        if isinstance(message, m.Welcome):
            self.session.send(m.Ready(m.WorkerState()))
        if isinstance(message, m.Table):
            self.table = message
            self.has_table.set()

    def lost(self, text: str) -> None:
        """Print it."""
        print(text, file=sys.stderr)

    def ended(self, error: SoftsError) -> None:
        """Print it."""
        print(error, file=sys.stderr)


def main() -> None:
    """Reduce once."""
    address, rank = sys.argv[1], int(sys.argv[2])
    member = Member(rank)
    member.session = Session(address, member)
    member.session.start()
    assert member.has_table.wait(30)
    assert member.table is not None
    store = SessionStore(member.session, "job", member.table, 30.0)
    prefixed = dist.PrefixStore(f"{member.table.boot}.{member.table.epoch}", store)
    group = dist.ProcessGroupGloo(prefixed, rank, 3, timedelta(seconds=30))
    tensor = torch.tensor([1.0, 2.0])
    group.allreduce([tensor]).wait()
    result: dict[str, Any] = {"sum": tensor.tolist()}
    store.set(f"own{rank}", "x")
    result["delete"] = [store.delete_key(f"own{rank}"), store.delete_key(f"own{rank}")]
    result["number"] = store.add(f"sum{rank}", 7)
    assert not store.check(["nothing"])
    try:
        store.wait(["nothing"], timedelta(milliseconds=50))
    except SoftsError as error:
        result["missing"] = f"{type(error).__name__}: {error}"
    group.barrier().wait()
    member.session.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
