"""C++ side of softs_fast. Private: addresses and counts that come in here are believed."""

from collections.abc import Sequence
from typing import TypedDict

class _BuildInfo(TypedDict):
    compiler: str
    compiled: list[str]
    available: list[str]
    chosen: str

def build_info() -> _BuildInfo:
    """Return what `softs_fast.kernels.build_info` is made of."""

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
        ValueError: no input or no output; a dtype, an operation or an instruction set that is not known or not available here, or
            a combination that is not supported. Nothing was written.
    """

def cuda_build() -> tuple[int, str] | None:
    """Return the version of the CUDA runtime inside (13000 is 13.0) and the architectures compiled for; None without CUDA."""

class CudaError(RuntimeError):
    """What CUDA says of a failure: "its name: its explanation (the call)"; or that this build has no CUDA side."""

def cuda_devices() -> int:
    """Return how many CUDA devices there are; a negative number is minus a cudaError_t, such as that of a machine without a driver.

    0 in a build without CUDA.
    """

def cuda_device_name(device: int) -> str:
    """Return what a device is called."""

def cuda_device_id(device: int) -> str:
    """Return the UUID of a device, 32 hexadecimal digits, the same in all processes."""

def cuda_device_of(address: int) -> int | None:
    """Return the device that an address belongs to; None for memory of the host."""

def cuda_can_access(device: int, peer: int) -> bool:
    """Return whether a device may read and write the memory of another one. Its own it may."""

def cuda_copy(to: int, source: int, n_bytes: int, stream: int) -> None:
    """Copy between addresses of any kind, in the order of a stream of the current device."""

def cuda_pack(
    rows: Sequence[tuple[int, int, str, int, str]], *, slot: int, slot_bytes: int, stream: int
) -> None:
    """Pack tensors on a device into a slot there, each cast to the dtype of its place; returns before it has happened.

    Args:
        rows: of each tensor its address, count of items and dtype; offset in the slot in bytes, and dtype there.
        slot: address of the slot, of memory that cudaMalloc returned.
        slot_bytes: its size.
        stream: a cudaStream_t of the slot's device; 0 is the default one.

    Raises:
        ValueError: an unknown dtype, a cast that there is not, an item that is not aligned, leaves the slot or overlaps another.
        CudaError: this build has no CUDA side, or CUDA refused.
    """

def cuda_tensor(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: str, device: int, keep: object
) -> object:
    """Return a DLPack capsule of memory that is there; `keep` is let go of when the tensor that is made of it is. Strides count items."""

def cuda_register(address: int, n_bytes: int) -> None:
    """Make memory of the host known to CUDA, so that copies to a device need no buffer in between."""

def cuda_unregister(address: int) -> None:
    """Take `cuda_register` back."""

class CudaMemory:
    """An allocation of its own on a device, zeroed, which other processes can open as a whole."""

    def __init__(self, n_bytes: int, device: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def handle(self) -> bytes:
        """What another process opens it by, 64 bytes."""

    def close(self) -> None:
        """Free it. Idempotent. Who has it open must have closed it before."""

    def abandon(self) -> None:
        """Leave it as it is until the process ends: somebody may still use it."""

class CudaMapping:
    """The `CudaMemory` of another process; `device` is the one whose work will access it."""

    def __init__(self, handle: bytes, device: int) -> None: ...
    @property
    def address(self) -> int: ...
    def close(self) -> None:
        """Close it. Idempotent."""

    def abandon(self) -> None:
        """Leave it open until the process ends: a stream may still use it."""

class CudaEvent:
    """A mark in the order of a stream, which other processes can open, record and wait for."""

    def __init__(self, device: int) -> None: ...
    @staticmethod
    def open(handle: bytes, device: int) -> CudaEvent:
        """Open the event of another process."""

    @property
    def handle(self) -> bytes:
        """What another process opens it by, 64 bytes."""

    def record(self, stream: int) -> None:
        """Set the mark at the end of a stream of the event's device."""

    def wait(self, stream: int) -> None:
        """Let a stream wait for the record that is the last one at the time of this call; not at all if there is none."""

    def is_done(self) -> bool:
        """Return whether the last record is done; True if there is none."""

    def synchronize(self) -> None:
        """Wait for the last record."""

    def close(self) -> None:
        """Destroy it. Idempotent."""

class CudaStream:
    """Work in an order of its own; the default stream does not wait for it."""

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
    """Reduce buffers on a device, as `reduce` does on the host and with the same bits; returns before it has happened.

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
        ValueError: a dtype, an operation or a combination that there is not, or too many inputs.
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
    stream: int,
) -> None:
    """All-reduce in one launch, whose blocks wait for those of the other ranks; see csrc/cuda/reduce.hpp.

    Args:
        ranks: of every rank the addresses of what it has staged, of room for its slice of the result, and of its
            `CUDA_TOGETHER_FLAGS` flags of 4 bytes.
        rank: this one.
        output: address of the result.
        missing: address of `CUDA_TOGETHER_BLOCKS` words of 8 bytes on the device: who did not come, as bits.
        count: items of the whole.
        in_dtype: of what is staged.
        out_dtype: of the result.
        op: `sum`, `mean`, `min` or `max`.
        scale: factor of the result.
        one_shot: whether every rank reduces everything.
        epoch: of 32 bits; one more than in the launch before.
        deadline_s: seconds that a block waits for the others, twice at most.
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
    """Unnamed shared memory on its way into a group."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: `create` and `open` make them."""

    @staticmethod
    def create(bytes: int) -> Segment:
        """Make one. Raises SegmentError."""

    @staticmethod
    def create_group(size: int, slot_bytes: int) -> Segment:
        """Make that of a group. Raises ConfigError, SegmentError."""

    @staticmethod
    def open(offer: bytes, bytes: int) -> Segment:
        """Open what another process offers, if it is that. Raises ConfigError, SegmentError."""

    @staticmethod
    def open_group(offer: bytes, size: int, slot_bytes: int) -> Segment:
        """Open the segment of a group. Raises ConfigError, SegmentError."""

    def offer(self) -> bytes:
        """Return what another process needs to open it. Raises ConfigError once it belongs to a group."""

class Part:
    """One rank's bytes of a region, as a buffer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only `Region` makes them."""

class Region:
    """Memory that all ranks of a group have mapped."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only `Group.share` makes them."""

    def part(self, rank: int) -> Part:
        """Return what belongs to a rank."""

    def result(self) -> Part:
        """Return what is for results."""

class Group:
    """Ranks that do the same calls in the same order; see csrc/collective/group.hpp.

    Calls that return a bool return False on every rank, having moved nothing, where the ranks do not do the same. They raise
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
        """Reduce, each rank its slice; bounds in elements."""

    def all_gather(self, source: int, bounds: Sequence[int], target: int, tag: int) -> bool:
        """Gather slices; bounds in bytes."""

    def broadcast(self, data: int, n_bytes: int, root: int, tag: int) -> bool: ...
    def exchange(self, said: bytes) -> list[bytes]:
        """Return what every rank says, at most 32 KiB."""

    def share(self, n_bytes: int) -> Region | None:
        """Make memory of all ranks; None where they want different amounts. Raises SegmentError on all or none."""

    def give_up(self, why: str) -> None: ...
    def rebuild(self) -> Group: ...
    def close(self) -> None: ...
    def set_schedule(self, one_shot_bytes: int, chunk_bytes: int) -> None: ...
    def metrics(self) -> list[tuple[int, int, float, float]]:
        """Return calls, bytes, seconds, seconds of waiting for each kind of call."""

    def lost(self) -> list[int]: ...
    def ended(self) -> list[int]:
        """Return the ranks whose processes have ended, whatever they did before."""

    def describe(self, rank: int) -> str:
        """Return a rank with its process and state, in words. Raises ValueError: there is no such rank."""

    def broken(self) -> str: ...
