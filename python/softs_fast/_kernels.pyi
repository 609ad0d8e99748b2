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

def cuda_devices() -> int:
    """Return how many CUDA devices there are; a negative number is a cudaError_t, such as that of a machine without a driver.

    Raises:
        RuntimeError: this build has no CUDA side.
    """

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
        RuntimeError: this build has no CUDA side, or CUDA refused; the text is CUDA's.
    """

MAX_RANKS: int

def this_process() -> tuple[int, int]:
    """Return this process's number, and when it began in clock ticks since boot."""

def process_started(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 if there is none of that number."""

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
    def broken(self) -> str: ...
