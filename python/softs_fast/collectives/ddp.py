"""Communication hook for DistributedDataParallel: gradients are reduced by a strategy instead of the process group.

model = DistributedDataParallel(net, gradient_as_bucket_view=True)
model.register_comm_hook(DDPState(strategy), ddp_hook)
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import TracebackType
from typing import Self

import torch
from torch.distributed import GradBucket

from softs_fast.collectives.strategy import ReduceOp, Strategy
from softs_fast.collectives.tensors import name_of
from softs_fast.errors import ConfigError


class DDPState:
    """State of `ddp_hook`: a strategy, and a thread that reduces buckets in order while autograd makes the next one.

    Buckets on a CUDA device are reduced in a stream of their own, which waits for the present work of autograd's
    stream; work after the backward pass waits for it on the device.

    Args:
        strategy: the strategy of the model's ranks; not closed with this.
        compress: reduce in this dtype (torch.bfloat16 or torch.float16) if gradients are wider; None reduces them as
            they are. It saves time over a network, and none within one host.

    Raises:
        ConfigError: `compress` is no 16-bit float.
    """

    def __init__(self, strategy: Strategy, *, compress: torch.dtype | None = None) -> None:
        if compress not in (None, torch.bfloat16, torch.float16):
            raise ConfigError(f"compress is {name_of(compress)}; it must be bfloat16, float16 or None")
        self._strategy = strategy
        self._compress = compress
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="softs-ddp")
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def submit(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to reduce a bucket to its mean; return a future of the same tensor.

        Raises:
            ConfigError: the state is closed.
        """
        stream = self._stream_beside(buffer.device) if buffer.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if stream else None
        )
        try:
            self._worker.submit(self._reduce, buffer, stream, future)
        except RuntimeError as error:
            raise ConfigError("the state of the DDP hook is closed") from error
        return future

    def close(self) -> None:
        """Wait for pending reductions and end the thread; a second call does nothing."""
        self._worker.shutdown()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _stream_beside(self, device: torch.device) -> torch.cuda.Stream:
        """Return the stream for buckets of a device; it waits for the present work of the current stream."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        stream.wait_stream(torch.cuda.current_stream(device))
        return stream

    def _reduce(
        self,
        buffer: torch.Tensor,
        stream: torch.cuda.Stream | None,
        future: torch.futures.Future[torch.Tensor],
    ) -> None:
        """Reduce in the thread; an exception is raised by `loss.backward()`."""
        with torch.cuda.stream(stream) if stream else nullcontext():
            try:
                if self._compress is not None and buffer.element_size() > self._compress.itemsize:
                    narrow = buffer.to(self._compress)
                    self._strategy.all_reduce(narrow, ReduceOp.MEAN)
                    buffer.copy_(narrow)
                else:
                    self._strategy.all_reduce(buffer, ReduceOp.MEAN)
            except BaseException as error:  # a future that is never completed would block DDP
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(buffer)


# DDP compares these annotations with the types themselves.
def ddp_hook(state: DDPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks; for `DistributedDataParallel.register_comm_hook(state, ddp_hook)`.

    Every rank gets the same bits. With `gradient_as_bucket_view=True` gradients are averaged in the memory that the
    optimizer reads.

    Raises:
        ConfigError: the state is closed.
    """
    return state.submit(bucket.buffer())
