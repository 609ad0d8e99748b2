"""Private parts of Python and torch that this repository relies on: CONTRIBUTING.md lists all of them, and each has a test here."""

import ast
import contextlib
import copy
import inspect
import json
import multiprocessing.context
import multiprocessing.util
import os
import pickle
import re
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import forked
import pytest
import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from private_names import REPOSITORY, SOURCES, STUBS, defined, private_parts
from torch._C._distributed_c10d import Backend
from torch._subclasses import FakeTensorMode
from torch._utils import ExceptionWrapper
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils.pin_memory import pin_memory
from waiting import eventually

from softs_fast import ConfigError
from softs_fast.fleet import fork_server
from softs_fast.fleet.fork_server import WorkerProcess, server_for

# Python 3.12 and later warn about a fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def register_finalizers(pipe: Connection) -> None:
    for priority in (5, 10):
        multiprocessing.util.Finalize(None, pipe.send, args=(priority,), exitpriority=priority)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_finalizers_run_when_a_worker_process_ends(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=register_finalizers, args=(there,))
    process.start()
    there.close()
    said = []
    with contextlib.suppress(EOFError):
        while True:
            said.append(here.recv())
    process.join()
    process.close()
    here.close()
    assert said == [10, 5], (
        "multiprocessing.util.Finalize no longer runs in a process that ends, higher priorities first: "
        "clients in DataLoader workers stay open"
    )


def leave_a_worker(pipe: Connection) -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    multiprocessing.util.Finalize(None, lambda: pipe.send(child.is_alive()), exitpriority=-1)


def test_a_finalizer_of_negative_priority_comes_after_the_end_of_daemons() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=leave_a_worker, args=(there,))
    process.start()
    assert here.poll(30)
    assert here.recv() is False, (
        "multiprocessing.util.Finalize with a negative priority runs before workers were ended: "
        "the segments of workers stay in /dev/shm"
    )
    process.join()
    process.close()
    here.close()
    there.close()


def test_an_exception_is_sent_and_raised_again() -> None:
    try:
        raise ConfigError("boom")
    except ConfigError:
        error = ExceptionWrapper(where="in a worker")
    with pytest.raises(ConfigError, match=r"(?s)in a worker.*boom"):
        pickle.loads(pickle.dumps(error)).reraise()


def test_a_batch_is_packed_here_and_pinned_there() -> None:
    unpacked = pickle.loads(bytes(ForkingPickler.dumps({"x": [0, 1, 2]})))
    assert unpacked == {"x": [0, 1, 2]}
    assert pin_memory("no tensor") == "no tensor"


def test_accelerate_takes_what_is_prepared() -> None:
    from accelerate import Accelerator

    class Loader(torch.utils.data.DataLoader[int]):
        _is_accelerate_prepared = True

    loader = Loader([1, 2])  # type: ignore[arg-type]
    assert Accelerator(cpu=True).prepare(loader) is loader


def optimize_without_the_compiler(say: object, rank: int, size: int) -> None:
    """Make the first optimizer of a process that cannot import the compiler."""
    sys.modules["torch._dynamo"] = None  # type: ignore[assignment]
    with pytest.raises(ImportError, match=r"torch\._dynamo"):
        torch.optim.Adam([torch.zeros(1)])


def test_the_first_optimizer_imports_the_compiler() -> None:
    """Else tests/conftest.py need not import it for processes to come."""
    ranks.run(optimize_without_the_compiler, 1)


def test_the_default_store_can_be_had(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        store.set("key", "value")
        prefixes = dist.distributed_c10d._get_default_store()
        assert isinstance(prefixes, dist.Store)
        prefixes.set("other", "value")
        assert prefixes.get("other") == b"value"
    finally:
        dist.destroy_process_group()


class Names(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_each_operator() -> None:
    x = torch.ones(3, requires_grad=True)
    with Names() as names:
        x.exp().sum().backward()
    assert {"exp", "sum", "mul"} <= set(names.seen), "also those of the backward pass"


def test_many_tensors_are_copied_in_one_call() -> None:
    to, source = [torch.zeros(2), torch.zeros(3)], [torch.ones(2), torch.ones(3)]
    torch._foreach_copy_(to, source)
    assert all(torch.equal(a, b) for a, b in zip(to, source, strict=True))


class Probe:
    """Notes whether it is pickled for a process that starts."""

    def __init__(self) -> None:
        self.notes: list[bool] = []

    def __reduce__(self) -> tuple[type, tuple[()]]:
        self.notes.append(multiprocessing.context.get_spawning_popen() is not None)
        return int, ()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_pickle_for_a_process_that_starts_is_told_from_others(method: str) -> None:
    probe = Probe()
    copy.copy(probe)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=abs, args=(probe,))
    process.start()
    process.join()
    process.close()
    copy.copy(probe)
    assert probe.notes == [False, True, False], (
        "multiprocessing.context.get_spawning_popen no longer tells a pickle for a process that starts from others: "
        "a dataset can be copied that should refuse"
    )


def test_a_server_of_ours_starts_a_process_of_multiprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    # One without torch: it starts at once.
    monkeypatch.setattr(fork_server, "_last", None)
    monkeypatch.setattr(fork_server, "_LIBRARIES", ())
    monkeypatch.setattr(fork_server, "_OWN", "softs_fast.fleet.")
    server = server_for({})
    eventually(server.is_ready, "the server is ready")
    event = multiprocessing.get_context("spawn").Event()
    process = WorkerProcess(server, os.environ, 2, forked.set_it, (event,), "worker")
    process.start()
    process.join()
    status = process.exitcode
    process.close()
    assert (event.is_set(), status) == (True, 0), (
        "multiprocessing starts processes in another way: workers of fleets cannot begin"
    )


def test_a_stream_can_be_kept_busy() -> None:
    sleep = getattr(torch.cuda, "_sleep", None)
    assert sleep is not None, (
        "torch.cuda._sleep is gone: tests/gpu/test_cuda_faults.py needs another long kernel"
    )
    inspect.signature(sleep).bind(1 << 40)


def test_a_group_may_have_one_rank_that_exists() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        dist.barrier()
        assert (dist.get_rank(), dist.get_world_size()) == (1, 2)
    finally:
        dist.destroy_process_group()


def test_tensors_of_one_memory_are_counted() -> None:
    # Two rows and the tensor of both have one memory; the object of the storage counts, too.
    tensors = [torch.zeros(3), *torch.zeros(2, 3)]
    assert [torch._C._storage_Use_Count(one.untyped_storage()._cdata) for one in tensors] == [2, 4, 4]


@pytest.mark.skipif(not hasattr(Backend, "get_reconfigure_handle"), reason="needs torch 2.15")
def test_a_backend_can_be_written_in_python() -> None:
    class Own(Backend):
        def allreduce(self, tensors: list[torch.Tensor], opts: object) -> None:
            tensors[0].fill_(7.0)

    own = Own(0, 1)
    tensor = torch.zeros(2)
    own.allreduce([tensor], None)
    assert (tensor.tolist(), own.rank(), own.size()) == ([7.0, 7.0], 0, 1)


def test_a_storage_is_moved_in_place() -> None:
    tasks = []
    tensor = torch.ones(1000, requires_grad=True)
    tensor.register_hook(lambda _: tasks.append(torch._C._current_graph_task_id()))
    tensor.sum().backward()
    assert (tasks[0] == -1, torch._C._current_graph_task_id()) == (False, -1)
    view, storage, address = tensor[5:], tensor.untyped_storage(), tensor.data_ptr()
    fd, n_bytes = storage._share_fd_cpu_()
    assert os.fstat(fd).st_size == n_bytes == 4000
    assert tensor.data_ptr() == view.data_ptr() - 20 != address
    # One object for one storage: a weak reference to it tells when the storage ends.
    assert view.untyped_storage() is storage


def test_functional_collectives_can_be_called() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        assert functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist() == [1.0, 1.0]
    finally:
        dist.destroy_process_group()


def test_tensors_without_memory_can_be_made() -> None:
    with FakeTensorMode():
        assert torch.zeros(3).shape == (3,)
    wrapper = type("Wrapper", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_: None)})
    assert torch.Tensor._make_wrapper_subclass(wrapper, (3,)).shape == (3,)


def test_accelerate_forgets_its_state() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    for precision in ("no", "bf16"):
        assert Accelerator(cpu=True, mixed_precision=precision).mixed_precision == precision
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)


# Prints the command lines of its children, and the targets of its descriptors with the children that have them open,
# too.
SHOW_HELPERS = """
import json, multiprocessing, os, pathlib
from multiprocessing import sharedctypes

def targets(pid):
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return found

before = targets("self")
memory = sharedctypes.RawArray("B", 100)
process = multiprocessing.get_context("forkserver").Process(target=os.getpid)
process.start()
process.join()
process.close()
children = pathlib.Path("/proc/self/task").glob("*/children")
pids = [int(pid) for file in children for pid in file.read_text().split()]
kept = targets("self") - before
print(json.dumps({
    "commands": [pathlib.Path(f"/proc/{pid}/cmdline").read_text() for pid in pids],
    "kept": sorted(kept - {target for pid in pids for target in targets(pid)}),
}))
"""


@pytest.fixture(scope="module")
def helpers() -> Any:
    """What multiprocessing keeps in a process that has started a forkserver process and has shared memory."""
    done = subprocess.run([sys.executable, "-c", SHOW_HELPERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_helpers_of_multiprocessing_have_its_modules_in_their_command_lines(helpers: Any) -> None:
    names = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
    found = [sum(name in command for command in helpers["commands"]) for name in names]
    assert found == [1, 1] == [1] * len(helpers["commands"]), (
        f"the helper processes of multiprocessing have other command lines, {helpers['commands']}: "
        "tests/conftest.py takes them for processes that a test has left behind"
    )


def test_shared_memory_of_multiprocessing_has_its_prefix(helpers: Any) -> None:
    assert helpers["kept"], "shared memory of multiprocessing has no file"
    unknown = [target for target in helpers["kept"] if "/pym-" not in target and "/pymp-" not in target]
    assert unknown == [], (
        f"multiprocessing keeps other descriptors, {unknown}: tests/conftest.py takes them for descriptors "
        "that a test has left behind"
    )


def test_the_contributing_page_lists_all_private_parts() -> None:
    found: set[str] = set()
    ours: set[str] = set()
    for path in [*SOURCES, *STUBS]:
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        found.update(private_parts(nodes))
        ours.update(defined(nodes))
    assert found, "the search finds nothing"
    # Of which package an attribute alone is, is not known: of another one, if nothing here has its name.
    found -= ours
    # Parts that are text to Python are not found by the search.
    listed = {
        part for row in rows() for part in parts_of(row) if "/" not in part and ", as text" not in row["part"]
    }
    assert found == listed, (
        f"not in CONTRIBUTING.md: {sorted(found - listed)}; listed there, and not used: {sorted(listed - found)}"
    )


def test_each_listed_part_is_used_where_the_page_says_and_has_a_test() -> None:
    tests = Path(__file__).read_text()
    for row in rows():
        (name,) = re.findall(r"`(\w+)`", row["test"])
        assert f"def {name}(" in tests, f"no {name} in {Path(__file__).name}"
        (place,) = re.findall(r"`([^`]+)`", row["used in"])
        users = [REPOSITORY / place] if place.endswith(".py") else (REPOSITORY / place).rglob("*.py")
        text = "".join(path.read_text() for path in users)
        for part in parts_of(row):
            assert part.split(".")[-1] in text, f"{part} is not used in {place}"


def rows() -> list[dict[str, str]]:
    """Return the rows of the table, by column."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    lines = re.findall(
        r"^\| .* \|$", page.partition("## Private parts")[2].partition("\n## ")[0], re.MULTILINE
    )
    head, *body = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert head == ["part", "used in", "why", "test"]
    assert body, "the table is empty"
    return [dict(zip(head, cells, strict=True)) for cells in body]


def parts_of(row: dict[str, str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row["part"])
