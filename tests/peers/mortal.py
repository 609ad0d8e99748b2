"""Peers that kill themselves, or wait to be killed: forks of zygote.py that call `run`. They report what they do as role.py does."""

import os
import signal
import threading
from typing import Any

import stamp

import softs_fast
from role import say, wait_for_end
from softs_fast import _core


def die() -> None:
    """What kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave_writer(out: memoryview) -> None:
    """Fork a process that writes to the slot when the test sends a line, and another one that reports how that went."""
    if os.fork():
        return
    writer = os.fork()
    if writer == 0:
        os.read(0, 1)
        out[:] = bytes(len(out))
        os._exit(0)
    say(event="wrote", status=os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]))
    os._exit(0)


def run_supplier(options: dict[str, Any]) -> None:
    """Makes numbered samples in place, and dies in call number `call` at `point`."""
    calls = 0

    def fill(product_id: str, out: memoryview, sequence: int) -> None:
        nonlocal calls
        calls += 1
        point = options["point"] if calls == options["call"] else None
        if point == "exec":
            say(event="exec")
            os.execvp("sleep", ["sleep", "3600"])
        if point == "forked":
            leave_writer(out)
            die()
        out[:] = stamp.numbered(sequence, len(out))

    supplier = softs_fast.Supplier(
        None, ["p.*"], options["endpoint"], softs_fast.ShmMedium, options["slot_size"], fill_fn=fill
    )
    supplier.start()
    say(event="ready", pid=os.getpid())
    wait_for_end()
    supplier.stop()


def run_stopper(options: dict[str, Any]) -> None:
    """Serves orders of the broker only, and stops itself between the question whether it may write and the first write."""
    softs_fast.Supplier._writes_to = lambda self: None
    maker = stamp.Maker(options["slot_size"])
    supplier = softs_fast.Supplier(
        maker.make, ["p.*"], options["endpoint"], softs_fast.ShmMedium, options["slot_size"]
    )
    core: Any = supplier._core
    stops = iter([True])

    class Stopping:
        """The native supplier, with a pause."""

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def may_write(self) -> bool:
            answer: bool = core.may_write()
            if next(stops, False):
                say(event="stops", answer=answer)
                # To this thread: another one would take a moment to stop it too.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return answer

    supplier._core = Stopping()  # type: ignore[assignment]
    supplier.start()
    say(event="ready", pid=os.getpid())
    wait_for_end()
    supplier.stop()


def run_holder(options: dict[str, Any]) -> None:
    """Leases a block of slots and keeps it."""
    client = softs_fast.Client(
        options["endpoint"], softs_fast.ShmMedium, options["slot_size"], num_slots=8, block=2
    )
    lease = None
    while lease is None:
        lease = client.lease("p1", timeout_ms=1000)
    view = memoryview(lease)
    say(event="ready", pid=os.getpid(), address=client.medium.address, first=view[:8].hex())
    wait_for_end()
    client.close()


def run_creator(options: dict[str, Any]) -> None:
    """Creates segments one after the other, and closes all but the last."""
    say(event="ready", pid=os.getpid())
    while True:
        softs_fast.ShmMedium(None, 1 << 20, 8, create=True)


def run_sweeper(options: dict[str, Any]) -> None:
    """Sweeps without end."""
    say(event="ready", pid=os.getpid())
    while True:
        _core.sweep()


RUN = {
    "supplier": run_supplier,
    "stopper": run_stopper,
    "holder": run_holder,
    "creator": run_creator,
    "sweeper": run_sweeper,
}


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does."""
    RUN[role](options)
