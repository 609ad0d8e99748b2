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
