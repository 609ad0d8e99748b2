"""Communication hook for DistributedDataParallel: gradients are reduced by a strategy instead of the process group.

model = DistributedDataParallel(net, gradient_as_bucket_view=True)
model.register_comm_hook(DDPState(strategy), ddp_hook)
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from softs_fast.collectives.cuda.strategy import CudaStrategy
from softs_fast.collectives.strategy import ReduceOp, Strategy
from softs_fast.collectives.tensors import name_of
from softs_fast.errors import ConfigError
from softs_fast.process import Closing


class DDPState(Closing):
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
        ConfigError: The state is closed, or a gradient is sparse; the text names its parameter.
    """
    buffer = bucket.buffer()
    if buffer.layout is not torch.strided:
        names = ", ".join(f'"{_name_of(parameter)}"' for parameter in bucket.parameters())
        state.error = ConfigError(
            f"the gradient of parameter {names} is {name_of(buffer.dtype)} of layout "
            f"{str(buffer.layout).removeprefix('torch.')}; the hook reduces dense ones: make the module without "
            "sparse=True, or leave out the hook"
        )
        raise state.error
    return state.submit(buffer)


def _name_of(parameter: torch.Tensor) -> str:
    """Return the name of a parameter in its model: torch tells a hook none, so all models of the process are asked."""
    for model in gc.get_objects():
        if issubclass(type(model), DistributedDataParallel):
            for name, one in model.module.named_parameters():
                if one is parameter:
                    return str(name)
    return f"of shape {list(parameter.shape)}"
