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

from softs_fast.collectives.cuda.strategy import CudaStrategy
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
            they are. It saves time over a network and between devices, and none in the memory of one host. A
            `CudaStrategy` casts in its own launches, and does not round the mean.

    Attributes:
        error: the first exception of a reduction, for example PeerLost; None while there is none. DDP raises it from
            `backward()` as a RuntimeError with its text, so look here for the exception itself.

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
        self.error: BaseException | None = None

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
        """Reduce in the thread; an exception is kept, and raised by `loss.backward()` in DDP's form."""
        with torch.cuda.stream(stream) if stream else nullcontext():
            try:
                self._average(buffer)
            except BaseException as error:  # a future that is never completed would block DDP
                self.error = self.error or error
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(buffer)

    def _average(self, buffer: torch.Tensor) -> None:
        """Reduce a bucket in place, by way of the narrower dtype if there is one."""
        by = self._compress
        if by is None or buffer.element_size() <= by.itemsize:
            self._strategy.all_reduce(buffer, ReduceOp.MEAN)
        elif isinstance(self._strategy, CudaStrategy):
            self._strategy.all_reduce(buffer, ReduceOp.MEAN, output=buffer, staged=by)
        else:
            narrow = buffer.to(by)
            self._strategy.all_reduce(narrow, ReduceOp.MEAN)
            buffer.copy_(narrow)


# DDP compares these annotations with the types themselves.
def ddp_hook(state: DDPState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks; for `DistributedDataParallel.register_comm_hook(state, ddp_hook)`.

    Every rank gets the same bits. With `gradient_as_bucket_view=True` gradients are averaged in the memory that the
    optimizer reads.

    Raises:
        ConfigError: the state is closed, or gradients are sparse, as of `torch.nn.Embedding(sparse=True)`; `backward()`
            raises it on all ranks.
    """
    buffer = bucket.buffer()
    if buffer.layout is not torch.strided:
        # DDP tells a hook no names.
        shapes = ", ".join(str(list(parameter.shape)) for parameter in bucket.parameters())
        raise ConfigError(
            f"gradients of parameters of shapes {shapes} are {str(buffer.layout).removeprefix('torch.')}; expected dense "
            "ones: make their modules with sparse=False"
        )
    return state.submit(buffer)
