"""C++ side of softs_fast. Private: addresses and counts are not checked here, but by its callers."""

from collections.abc import Sequence
from typing import TypedDict

class _BuildInfo(TypedDict):
    compiler: str
    compiled: list[str]
    available: list[str]
    chosen: str

def build_info() -> _BuildInfo:
    """Return the data of `softs_fast.kernels.build_info`."""

def reduce(
    inputs: Sequence[int],
    outputs: Sequence[int],
    count: int,
    *,
    in_dtype: str,
    out_dtype: str,
    op: str,
    scale: float,
    stream_stores: bool,
    instruction_set: str | None,
) -> None:
    """Reduce buffers at addresses, `count` items each, without the GIL.

    Raises:
        ValueError: no input or no output; a dtype, an operation or an instruction set that is not known or not
            available here, or a combination that is not supported. Nothing was written.
    """

def cuda_build() -> tuple[int, str] | None:
    """Return the version of the CUDA runtime (13000 is 13.0) and the target architectures; None without CUDA."""

class CudaError(RuntimeError):
    """A failure of CUDA, as "its name: its explanation (the call)", or a build without a CUDA side."""

def cuda_devices() -> int:
    """Return the number of CUDA devices; 0 in a build without CUDA.

    A negative number is minus a cudaError_t, for example that of a machine without a driver.
    """

def cuda_device_name(device: int) -> str:
    """Return the name of a device."""

def cuda_device_id(device: int) -> str:
    """Return the UUID of a device, 32 hexadecimal digits, the same in all processes."""

def cuda_device_of(address: int) -> int | None:
    """Return the device that an address belongs to; None for host memory."""

def cuda_can_access(device: int, peer: int) -> bool:
    """Return whether a device may read and write the memory of another one; True for its own."""

def cuda_load_kernels(device: int) -> None:
    """Load all kernels onto a device.

    A kernel that is not loaded is loaded by its first launch, which may wait for all work of the process on that device.
    """

def cuda_copy(to: int, source: int, n_bytes: int, stream: int) -> None:
    """Copy between host or device addresses, in the order of a stream of the current device."""

def cuda_pack(
    rows: Sequence[tuple[int, int, str, int, str]], *, slot: int, slot_bytes: int, stream: int
) -> None:
    """Pack tensors on a device into a slot there, each cast to its dtype in the slot; asynchronous.

    Args:
        rows: for each tensor its address, count of items and dtype; its offset in the slot in bytes, and dtype there.
        slot: address of the slot, in memory from cudaMalloc.
        slot_bytes: size of the slot.
        stream: a cudaStream_t of the slot's device; 0 is the default one.

    Raises:
        ValueError: an unknown dtype, a cast that is not supported, or an item that is not aligned, exceeds the slot or
            overlaps another.
        CudaError: this build has no CUDA side, or CUDA refused.
    """

def cuda_tensor(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: str, device: int, keep: object
) -> object:
    """Return a DLPack capsule of existing memory; `keep` is referenced as long as its tensor. Strides count items."""

def cuda_register(address: int, n_bytes: int, device: int) -> None:
    """Register host memory with CUDA, so that copies to devices need no staging buffer; `device` is one in use."""

def cuda_unregister(address: int, device: int) -> None:
    """Undo `cuda_register`."""

def cuda_map_host(address: int, n_bytes: int, device: int) -> int:
    """Register whole pages of host memory for streams and kernels of a device; return their address there.

    `cuda_unregister` undoes it.
    """

def cuda_write_word(at: int, value: int, device: int, stream: int) -> None:
    """Write 32 bits into memory of `cuda_map_host`, behind all earlier work of a stream of the device; asynchronous.

    Raises CudaError: the driver cannot do it, or CUDA refused.
    """

def cuda_wait_for_word(at: int, value: int, device: int, stream: int) -> None:
    """Let a stream of the device wait until 32 bits have reached a value, by a signed difference; asynchronous.

    Raises CudaError: the driver cannot do it, or CUDA refused.
    """

class CudaMemory:
    """A separate allocation on a device, zeroed, which other processes can open as a whole."""

    def __init__(self, n_bytes: int, device: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def handle(self) -> bytes:
        """The handle by which another process opens it, 64 bytes."""

    def close(self) -> None:
        """Free it. Idempotent. Other processes must have closed it before."""

    def abandon(self) -> None:
        """Keep it allocated until the process ends, because another process or a stream may still use it."""

class CudaMapping:
    """The `CudaMemory` of another process, mapped for work of `device`."""

    def __init__(self, handle: bytes, device: int) -> None: ...
    @property
    def address(self) -> int: ...
    def close(self) -> None:
        """Close it. Idempotent."""

    def abandon(self) -> None:
        """Keep it open until the process ends, because a stream may still use it."""

class CudaEvent:
    """An event in a stream that other processes can open, record and wait for."""

    def __init__(self, device: int) -> None: ...
    @staticmethod
    def open(handle: bytes, device: int) -> CudaEvent:
        """Open the event of another process."""

    @property
    def handle(self) -> bytes:
        """The handle by which another process opens it, 64 bytes."""

    def record(self, stream: int) -> None:
        """Record the event at the end of a stream of the event's device."""

    def wait(self, stream: int) -> None:
        """Let a stream wait for the last record at the time of this call; without a record it does not wait."""

    def is_done(self) -> bool:
        """Return whether the last record has completed; True if there is none."""

    def synchronize(self) -> None:
        """Wait for the last record."""

    def close(self) -> None:
        """Destroy it. Idempotent."""

class CudaStream:
    """A stream for which the default stream does not wait."""

    def __init__(self, device: int) -> None: ...
    @property
    def handle(self) -> int: ...
    @property
    def device(self) -> int: ...
    def synchronize(self) -> None:
        """Wait until all its work is done."""

    def close(self) -> None:
        """Destroy it, once its work is done. Idempotent."""

def cuda_reduce(
    inputs: Sequence[int],
    output: int,
    count: int,
    *,
    in_dtype: str,
    out_dtype: str,
    op: str,
    scale: float,
    stream: int,
) -> None:
    """Reduce buffers on a device, as `reduce` does on the host and with the same bits; asynchronous.

    Args:
        inputs: addresses of device memory that the output's device can read; at most 64.
        output: address; may be an input if the items of both have one size.
        count: items of each.
        in_dtype: of the inputs.
        out_dtype: of the output.
        op: `sum`, `mean`, `min` or `max`.
        scale: factor of the result.
        stream: a cudaStream_t of the output's device; 0 is the default one.

    Raises:
        ValueError: a dtype, an operation or a combination that is not supported, or too many inputs.
        CudaError: this build has no CUDA side, or CUDA refused.
    """

def cuda_reduce_together(
    ranks: Sequence[tuple[int, int, int]],
    rank: int,
    output: int,
    missing: int,
    count: int,
    *,
    in_dtype: str,
    out_dtype: str,
    op: str,
    scale: float,
    one_shot: bool,
    epoch: int,
    deadline_s: float,
    stop: int,
    stream: int,
) -> None:
    """All-reduce in one launch; its blocks wait for those of the other ranks, see csrc/cuda/reduce.hpp.

    Args:
        ranks: for every rank the addresses of its staged tensor, of space for its slice of the result, and of its
            `CUDA_TOGETHER_FLAGS` flags of 4 bytes.
        rank: number of this rank.
        output: address of the result.
        missing: address of `CUDA_TOGETHER_BLOCKS` words of 8 bytes on the device, for the missing ranks as bits.
        count: items of the whole tensor.
        in_dtype: of the staged tensors.
        out_dtype: of the result.
        op: `sum`, `mean`, `min` or `max`.
        scale: factor of the result.
        one_shot: whether every rank reduces everything.
        epoch: 32 bits; one more than in the launch before.
        deadline_s: seconds that a block waits for the others, at most twice.
        stop: address of a word of `cuda_map_host` that ends the waits if it is not 0; or 0.
        stream: a cudaStream_t of the output's device; 0 is the default one.

    Raises:
        ValueError: as for `cuda_reduce`, or no such rank.
        CudaError: this build has no CUDA side, or CUDA refused.
    """

CUDA_TOGETHER_FLAGS: int
CUDA_TOGETHER_BLOCKS: int
MAX_RANKS: int

def this_process() -> tuple[int, int, int]:
    """Return this process's number, its start in clock ticks since boot, and the inode of its pid namespace."""

def is_alive(pid: int, started: int, pid_namespace: int) -> bool:
    """Return whether the process of that number and start runs, by the rule of `_core.is_alive`."""

class Segment:
    """Unnamed shared memory for a group."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: `create` and `open` make them."""

    @staticmethod
    def create(bytes: int) -> Segment:
        """Create a segment. Raises SegmentError."""

    @staticmethod
    def create_group(size: int, slot_bytes: int) -> Segment:
        """Create the segment of a group. Raises ConfigError, SegmentError."""

    @staticmethod
    def open(offer: bytes, bytes: int) -> Segment:
        """Open the segment of another process's offer. Raises ConfigError, SegmentError."""

    @staticmethod
    def open_group(offer: bytes, size: int, slot_bytes: int) -> Segment:
        """Open the segment of a group. Raises ConfigError, SegmentError."""

    @staticmethod
    def create_region(n_bytes: int, size: int) -> Segment:
        """Create the segment of a region, `n_bytes` for each rank. Raises SegmentError."""

    @staticmethod
    def open_region(offer: bytes, n_bytes: int, size: int) -> Segment:
        """Open the segment of a region. Raises ConfigError, SegmentError."""

    def offer(self) -> bytes:
        """Return the bytes by which another process opens it. Raises ConfigError once it has been taken."""

class Part:
    """One rank's bytes of a region, as a buffer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only `Region` makes them."""

class Region:
    """Memory that all ranks of a group have mapped, from `Group.share` or of a segment."""

    def __init__(self, segment: Segment, n_bytes: int, size: int) -> None:
        """Take over a segment of `create_region` or `open_region`. Raises ConfigError if it is of another region."""

    def part(self, rank: int) -> Part:
        """Return the part of a rank."""

    def result(self) -> Part:
        """Return the part for results."""

class Group:
    """Ranks that make the same calls in the same order; see csrc/collective/group.hpp.

    Calls that return a bool return False on every rank, and move nothing, if the ranks make different calls. They raise
    PeerLost, ConfigError (closed), ForkedError.
    """

    def __init__(
        self,
        rank: int,
        processes: Sequence[tuple[int, int]],
        segment: Segment,
        slot_bytes: int,
        timeout_s: float,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def barrier(self, tag: int) -> bool: ...
    def all_reduce(
        self, pieces: Sequence[tuple[int, int]], dtype: int, op: int, scale: float, tag: int
    ) -> bool:
        """Reduce pieces, (address, count) each, in place."""

    def all_reduce_region(
        self,
        region: Region,
        offset: int,
        count: int,
        into_result: bool,
        stream: bool,
        dtype: int,
        op: int,
        scale: float,
        tag: int,
    ) -> bool:
        """Reduce a part of a region, into every rank's or into the result."""

    def reduce_scatter(
        self, source: int, bounds: Sequence[int], target: int, dtype: int, op: int, scale: float, tag: int
    ) -> bool:
        """Reduce a tensor; each rank gets its slice; bounds in elements."""

    def all_gather(self, source: int, bounds: Sequence[int], target: int, tag: int) -> bool:
        """Gather slices; bounds in bytes."""

    def broadcast(self, data: int, n_bytes: int, root: int, tag: int) -> bool: ...
    def exchange(self, said: bytes) -> list[bytes]:
        """Return the message of every rank, at most 32 KiB each."""

    def share(self, n_bytes: int) -> Region | None:
        """Create memory of all ranks; None if they request different sizes. Raises SegmentError on all or none."""

    def give_up(self, reason: str) -> None: ...
    def end(self, reason: str) -> None:
        """End the calls of all ranks, from any thread, beside a call of this one; none may need the group any more."""

    def rebuild(self) -> Group: ...
    def close(self) -> None: ...
    def set_schedule(self, one_shot_bytes: int, chunk_bytes: int) -> None: ...
    def metrics(self) -> list[tuple[int, int, float, float]]:
        """Return for each kind of call the number of calls, bytes, seconds, and seconds of waiting."""

    def n_in_place(self) -> int:
        """Return the number of reductions of tensors that all ranks have mapped."""

    def lost(self) -> list[int]: ...
    def ended(self) -> list[int]:
        """Return the ranks with processes that have ended."""

    def processes(self) -> list[tuple[int, int]]:
        """Return the number and start of the process of each rank."""

    def describe(self, rank: int) -> str:
        """Return a text of a rank with its process and state. Raises ValueError: there is no such rank."""

    def broken(self) -> str: ...

FIRST_WORD: int

class SharedTensor:
    """A tensor that all ranks of a group may map; see csrc/collective/shared_tensor.hpp."""

    def __init__(self) -> None: ...
    def seen(self) -> bool:
        """Count a call; return whether the memory shall be moved now, by `move` or `refuse`."""

    def move(self, data: int, n_bytes: int, fd: int) -> None:
        """Say that the memory is a mapping of the file of a descriptor; it gets a file of its own. Raises SegmentError."""

    def refuse(self) -> None:
        """Stage the tensor for good."""

    def part_from_parent(self) -> None:
        """In a fork: write to pages of this process's own from now on."""

class Call:
    """A collective call, described; see csrc/collective/group.hpp. Pieces are pairs of address and elements, or bytes."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only the functions of this class make them."""

    @staticmethod
    def barrier() -> Call: ...
    @staticmethod
    def confirm() -> Call:
        """Wait until all ranks have made the broadcast before it, if this one was the root; nothing else."""

    @staticmethod
    def all_reduce(
        pieces: Sequence[tuple[int, int]],
        dtype: int,
        op: int,
        root: int = -1,
        shared: SharedTensor | None = None,
    ) -> Call:
        """Reduce pieces in place, on the root alone if there is one; `shared` belongs to a single piece."""

    @staticmethod
    def reduce_scatter(pieces: Sequence[tuple[int, int]], target: int, dtype: int, op: int) -> Call:
        """Reduce piece r of all ranks into the target of rank r."""

    @staticmethod
    def all_gather(source: int, pieces: Sequence[tuple[int, int]], root: int = -1) -> Call:
        """Copy the source of rank r into piece r, in bytes; an address of 0 takes nothing."""

    @staticmethod
    def broadcast(data: int, n_bytes: int, root: int) -> Call:
        """Copy bytes of the root to all ranks. With up to one chunk the root does not wait: the next call confirms it."""

    @staticmethod
    def scatter(pieces: Sequence[tuple[int, int]], target: int, n_bytes: int, root: int) -> Call:
        """Copy piece r of the root, in bytes, into the target of rank r."""

    @staticmethod
    def all_to_all(sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> Call:
        """Send source r to rank r, and get target r from it; in bytes."""

class Outcome:
    """What becomes of a call that was submitted."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only `CallQueue` and `PointToPoint` make them."""

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether the call has ended; wait so long for it, and let signals through.

        With None it waits for the end, and makes the call on this thread if no other has begun it.
        """

    def differences(self) -> list[bytes]:
        """Return what each rank said if they made different calls, else nothing; raise what the call raised."""

class CallQueue:
    """The calls of a group, in the order in which they are given; see csrc/collective/call_queue.hpp."""

    def __init__(self, group: Group) -> None: ...
    def make(self, call: Call, timeout_s: float) -> list[bytes]:
        """Make a call, after those that are pending; return `Outcome.differences`."""

    def submit(self, call: Call, timeout_s: float) -> Outcome:
        """Give a call to the thread of the queue. Memory that it names must live until it has ended."""

    def close(self) -> None:
        """Wait for calls that were given, and end the thread."""

    def abandon(self) -> None:
        """Take no more calls, and leave the thread in what it does, for a process that ends."""

class PointToPoint:
    """Messages between two ranks of a group, beside its calls; see csrc/collective/point_to_point.hpp."""

    def __init__(self, group: Group, region: Region) -> None: ...
    @staticmethod
    def part_bytes(size: int) -> int:
        """Return the bytes of a region that it needs for each rank."""

    def send(self, rank: int, data: int, n_bytes: int, tag: int, timeout_s: float) -> Outcome:
        """Send bytes. They must live until the call has ended; a rank may receive them later."""

    def receive(self, rank: int, data: int, n_bytes: int, tag: int, timeout_s: float) -> Outcome:
        """Receive the first message of a tag that nothing else waits for."""

    def close(self) -> None:
        """End what is pending, and the thread."""

    def abandon(self) -> None:
        """Leave the thread in what it does, for a process that ends."""

class Words:
    """Words of a group that streams of devices write and wait for, and a watchdog; see csrc/collective/words.hpp.

    The word of each rank begins as FIRST_WORD and rises; comparisons are by a signed difference of 32 bits.
    """

    own: int
    """This rank's word. It is set only before streams of other ranks wait for it."""

    def __init__(self, group: Group) -> None:
        """Raises SegmentError: the system has no thread or descriptor left."""

    @property
    def memory(self) -> tuple[int, int]:
        """Address and bytes of the pages that hold all words."""

    @property
    def stop(self) -> int:
        """Address of the word that is not 0 when kernels of this rank shall no longer wait."""

    def word(self, rank: int) -> int:
        """Return the address of a rank's word. Raises ValueError: there is no such rank."""

    def want(self, value: int) -> None:
        """Tell the watchdog that streams of this rank are about to wait until all words have reached a value."""

    def undone(self) -> list[int]:
        """Return the ranks with words that have not reached that value by their streams."""

    def drained(self) -> bool:
        """Return whether a stream of any rank went on without the work of another one: results may be wrong."""

    def close(self) -> None:
        """End the watchdog; no stream of this process may wait for a word any more. Idempotent."""

MAX_CONFIG_BYTES: int

# Version, step, metric, trained, time of publication in ns (CLOCK_MONOTONIC), config.
_Seen = tuple[int, int, float | None, int, int, bytes]

class SnapshotRemote:
    """The snapshot segment of another process, mapped for reading alone; see csrc/snapshots/remote.hpp.

    All calls but `close` raise ConfigError (closed) and ForkedError.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: `open` makes them."""

    @staticmethod
    def open(pid: int, started: int, fd: int, id: bytes, n_bytes: int) -> SnapshotRemote:
        """Open and check a segment. Raises SegmentError."""

    def manifest(self) -> bytes: ...
    def digest(self) -> bytes: ...
    def header(self) -> _Seen:
        """Return the newest version, 0 if there is none. Raises SegmentError."""

    def is_alive(self) -> bool: ...
    def close(self) -> None: ...

class SnapshotWindow:
    """A snapshot segment of this process; see csrc/snapshots/window.hpp.

    Rows are addresses, offsets in a half, and bytes. All calls but `close` raise ConfigError (closed) and ForkedError.
    """

    def __init__(self, n_bytes: int, manifest: bytes, digest: bytes) -> None:
        """Make and allocate the segment. Raises SegmentError, ConfigError."""

    def address(self) -> tuple[int, int, int, bytes, int]:
        """Return the arguments of `SnapshotRemote.open`."""

    def publish(
        self,
        rows: Sequence[tuple[int, int, int]],
        step: int,
        metric: float | None,
        trained: int,
        config: bytes,
    ) -> int:
        """Begin, write and commit a version; return its number."""

    def begin(self) -> None: ...
    def write(self, rows: Sequence[tuple[int, int, int]]) -> None: ...
    def commit(self, step: int, metric: float | None, trained: int, config: bytes) -> int: ...
    def ask(self, wanted: SnapshotRemote) -> None: ...
    def is_asked(self, others: Sequence[SnapshotRemote]) -> bool: ...
    def close(self) -> None: ...

def snapshot_average(
    remotes: Sequence[SnapshotRemote],
    weights: Sequence[float],
    runs: Sequence[tuple[int, int, str]],
    scratch: int,
    as_is: Sequence[tuple[int, int, str]] = ...,
) -> tuple[str, int, int, list[_Seen]]:
    """Sum snapshots into `scratch`, without the GIL; see csrc/snapshots/average.hpp.

    Args:
        remotes: the donors.
        weights: of each.
        runs: offset, items and dtype of what lies together.
        scratch: address of memory of the size of a half.
        as_is: More runs, of items that may be infinite or NaN.

    Returns:
        "complete", "torn", "nothing yet" or "not finite"; number of the donor and offset of the first item that is not
        finite; what was read of each donor.

    Raises:
        ConfigError: a window is closed.
        SegmentError: a segment is smaller than the runs.
        ForkedError: in a fork.
    """

def snapshot_scatter(scratch: int, rows: Sequence[tuple[int, int, int]]) -> None:
    """Copy from memory of the size of a half to addresses, without the GIL; rows as for `SnapshotWindow`."""
