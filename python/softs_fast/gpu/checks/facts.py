"""Questions to the driver for which its manual has no clear answer. Any answer will do; it is only written down.

Each question is asked among processes of its own, which are killed afterwards: one that hangs is an answer, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from softs_fast import _kernels
from softs_fast.gpu import ranks
from softs_fast.tensors import cuda

from . import host_memory
from .on_device import hold, set_standin

__all__ = ["probe"]

#: A process that says nothing for so long hangs, seconds.
_SILENCE_S = 8.0
#: How long a stream is held that is to be done in the end, and one that is not; seconds.
_HELD_S, _NEVER_S = 0.5, 600.0
#: Small enough that a driver puts several allocations into one piece of memory.
_SMALL = 64 << 10
_N_EVENTS = 4096
#: Asks for the end of process 0 by SIGKILL.
_KILL_OWNER = {"kill": 0}


@dataclass(frozen=True)
class _Talk:
    """What one process of a question can do.

    Attributes:
        say: writes a part of the answer down, as a dictionary.
        peer: pipe to the other process of ranks 0 and 1.
    """

    say: Callable[[dict[str, Any]], None]
    peer: Connection

    def send(self, thing: object) -> None:
        """Send something to the other process."""
        self.peer.send(thing)

    def receive(self) -> Any:
        """Return what the other process sends; raises TimeoutError."""
        if not self.peer.poll(_SILENCE_S):
            raise TimeoutError("the other process sends nothing")
        return self.peer.recv()


_Role = Callable[[_Talk], None]


def probe(quick: bool) -> dict[str, Any]:
    """Ask all questions; return the answers by question. It fails only if a process cannot be started."""
    questions: dict[str, Sequence[_Role]] = {
        "event recorded by its importer": (_exporter, _importer),
        "event of a killed owner": (_mortal_owner, _heir),
        "two small allocations": (_owner_of_two, _opener_of_two),
        "memory opened twice": (_owner_of_one, _opener_twice),
        "memory freed while it is written": (_early_owner, _late_writer),
        "many events": (_many_events,),
        "registered host memory": (host_memory.registration,),
        "stream waits for host memory": (host_memory.waiter, host_memory.writer),
    }
    answers = {}
    for name, roles in questions.items():
        answers[name] = _ask(roles)
        # If time is up before the last one, the output has the others.
        print(f"{name}: {json.dumps(answers[name])}", flush=True)
    silent = [name for name, answer in answers.items() if answer["ended"]]
    n = len(answers)
    return {"note": f"{n - len(silent)} of {n} questions answered in full", "answers": answers}


def _ask(roles: Sequence[_Role]) -> dict[str, Any]:
    """Run the roles of a question in processes; return what they said, and which did not end by themselves."""
    pipes = Pipe()
    answer: dict[str, Any] = {}
    with pipes[0], pipes[1], ranks.start(_play, len(roles), roles, pipes) as running:
        for rank in range(len(roles)):
            # The other one first: it is told when rank 0 is to be killed.
            _listen(running, len(roles) - 1 - rank, answer)
    return answer


def _listen(running: ranks.Ranks, rank: int, answer: dict[str, Any]) -> None:
    """Note what a process says, until it has ended or hangs."""
    pipe, process = running.pipes[rank], running.processes[rank]
    ended: list[str] = answer.setdefault("ended", [])
    while pipe.poll(_SILENCE_S):
        try:
            said = pipe.recv()
        except EOFError:
            process.join()
            if process.exitcode != -signal.SIGKILL:
                ended.append(f"process {rank} ended with {process.exitcode}")
            return
        if said == _KILL_OWNER:
            running.processes[0].kill()
            running.processes[0].join()
        elif isinstance(said, dict):
            answer |= said
        else:
            if isinstance(said, ranks.Raised):
                ended.append(f"process {rank}: {said.kind}: {said.text}")
            # What it has in streams may keep it from ending.
            began = time.monotonic()
            process.join(_SILENCE_S)
            answer[f"process {rank} took to end, s"] = round(time.monotonic() - began, 3)
            if process.exitcode is None:
                ended.append(f"process {rank} does not end")
            return
    ended.append(f"process {rank} hangs")


def _play(
    say: Callable[[Any], None], rank: int, size: int, roles: Sequence[_Role], pipes: Sequence[Connection]
) -> None:
    roles[rank](_Talk(say, pipes[rank]))


def _exporter(talk: _Talk) -> None:
    event = _kernels.CudaEvent(0)
    talk.send(event.handle)
    talk.receive()
    talk.say({"done for its owner while the importer's stream is held": event.is_done()})
    began = time.monotonic()
    event.synchronize()
    talk.say({"its owner's wait, s": round(time.monotonic() - began, 3), "done then": event.is_done()})


def _importer(talk: _Talk) -> None:
    set_standin({"SOFTS_STANDIN_DELAY_US": "500000"})
    event = _kernels.CudaEvent.open(talk.receive(), 0)
    stream = _kernels.CudaStream(0)
    hold(stream.handle, _HELD_S)
    event.record(stream.handle)
    talk.send("recorded")
    stream.synchronize()


def _mortal_owner(talk: _Talk) -> None:
    set_standin({"SOFTS_STANDIN_DELAY_US": "100000000"})
    event = _kernels.CudaEvent(0)
    stream = _kernels.CudaStream(0)
    hold(stream.handle, _NEVER_S)
    event.record(stream.handle)
    talk.send(event.handle)
    time.sleep(_NEVER_S)


def _heir(talk: _Talk) -> None:
    handle = talk.receive()
    event, own = _kernels.CudaEvent.open(handle, 0), _kernels.CudaEvent(0)
    stream, other = _kernels.CudaStream(0), _kernels.CudaStream(0)
    event.wait(stream.handle)
    own.record(stream.handle)
    talk.say({"done before the death": event.is_done(), "a stream's wait is over before it": own.is_done()})
    talk.say(_KILL_OWNER)
    began = time.monotonic()
    while time.monotonic() - began < 1.0 and not own.is_done():
        time.sleep(0.01)
    talk.say({"done a second after the death": event.is_done(), "the stream's wait is over": own.is_done()})
    try:
        _kernels.CudaEvent.open(handle, 0).close()
        talk.say({"its handle opens once more": True})
    except _kernels.CudaError as error:
        talk.say({"its handle opens once more": str(error)})
    event.record(other.handle)
    other.synchronize()
    talk.say({"done when another process has recorded it": event.is_done()})
    talk.say({"the stream's wait is over then": own.is_done()})


def _owner_of_two(talk: _Talk) -> None:
    memories = [_kernels.CudaMemory(_SMALL, 0) for _ in range(2)]
    talk.send([memory.handle for memory in memories])
    addresses = [memory.address for memory in memories]
    talk.say({"bytes between them": addresses[1] - addresses[0]})
    talk.receive()


def _opener_of_two(talk: _Talk) -> None:
    handles = talk.receive()
    talk.say({"their handles are equal": handles[0] == handles[1]})
    mappings = [_kernels.CudaMapping(handle, 0) for handle in handles]
    addresses = [mapping.address for mapping in mappings]
    talk.say({"bytes between their mappings": addresses[1] - addresses[0]})
    talk.say({"alignment of the mappings": [address & -address for address in addresses]})
    talk.send("done")


def _owner_of_one(talk: _Talk) -> None:
    memory = _kernels.CudaMemory(_SMALL, 0)
    talk.send(memory.handle)
    talk.receive()


def _opener_twice(talk: _Talk) -> None:
    handle = talk.receive()
    first = _kernels.CudaMapping(handle, 0)
    try:
        second = _kernels.CudaMapping(handle, 0)
        talk.say({"the second address is the first": first.address == second.address})
        address = first.address
        second.close()
        taken = cuda.empty((_SMALL,), "uint8", 0)
        stream = _kernels.CudaStream(0)
        _kernels.cuda_copy(taken.data_ptr(), address, _SMALL, stream.handle)
        stream.synchronize()
        talk.say({"readable when one of both was closed": True})
    except _kernels.CudaError as error:
        talk.say({"error": str(error)})
    talk.send("done")


def _early_owner(talk: _Talk) -> None:
    memory = _kernels.CudaMemory(64 << 20, 0)
    talk.send(memory.handle)
    talk.receive()
    began = time.monotonic()
    try:
        memory.close()
        talk.say({"freed after, s": round(time.monotonic() - began, 3)})
    except _kernels.CudaError as error:
        talk.say({"freeing it": str(error)})
    try:
        again = _kernels.CudaMemory(64 << 20, 0)
        talk.say({"the same address is allocated again": again.address == memory.address})
    except _kernels.CudaError as error:
        talk.say({"allocating again": str(error)})
    talk.send("freed")


def _late_writer(talk: _Talk) -> None:
    set_standin({"SOFTS_STANDIN_DELAY_US": "20000"})
    memory = _kernels.CudaMapping(talk.receive(), 0)
    source = cuda.empty((64 << 20,), "uint8", 0)
    stream = _kernels.CudaStream(0)
    hold(stream.handle, _HELD_S)
    for _ in range(20):
        _kernels.cuda_copy(memory.address, source.data_ptr(), 64 << 20, stream.handle)
    talk.send("writing")
    talk.receive()
    try:
        stream.synchronize()
        talk.say({"the writer's stream": "no error"})
        memory.close()
        talk.say({"the writer's close": "no error"})
    except _kernels.CudaError as error:
        talk.say({"error": str(error)})


def _many_events(talk: _Talk) -> None:
    events: list[_kernels.CudaEvent] = []
    began = time.monotonic()
    try:
        for _ in range(_N_EVENTS):
            events.append(_kernels.CudaEvent(0))
            _ = events[-1].handle
    except _kernels.CudaError as error:
        talk.say({"error": str(error)})
    taken = time.monotonic() - began
    talk.say({"made": len(events), "us each": round(taken / max(1, len(events)) * 1e6, 1)})
    talk.say({"descriptors open": len(os.listdir("/proc/self/fd"))})
