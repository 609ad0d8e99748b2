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
