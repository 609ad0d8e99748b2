"""The native half of softs-fast. Private: use the classes of `softs_fast`.

Every handle belongs to the process that made it; in a fork its methods raise `softs_fast.ForkedError`. Blocking calls
release the GIL and check for signals every 50 ms.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

__all__ = [
    "Ahead",
    "Broker",
    "Client",
    "Codec",
    "ControlServer",
    "ControlStudent",
    "ControlSubscriber",
    "FlowClient",
    "FlowServer",
    "GatherPipeline",
    "HostLink",
    "Lease",
    "Mesh",
    "RaggedLayout",
    "RowReader",
    "RowServer",
    "Segment",
    "StoreClient",
    "StoreServer",
    "Supplier",
    "TopK",
    "Viewer",
    "__version__",
    "copy_rows",
    "count_change",
    "end_after",
    "is_alive",
    "is_ours",
    "lane_stats",
    "sweep",
    "this_process",
    "wake",
]

__version__: str

def sweep() -> list[str]:
    """Remove the segments of dead owners from shared memory; return their names."""

def lane_stats(segment: Segment) -> dict[str, Any] | None:
    """Return the counters of the lanes in a segment; None if it has none.

    `segment_id`; `client`: 16 counters; `suppliers`: `{index, pid, counters: 8 of them}` each; `lanes`: `{index,
    generation, attached, tail}` of each lane that was ever used.
    """

def this_process() -> tuple[int, int, int]:
    """The number of this process, its start in ticks since the boot, and the inode of its pid namespace.

    Raises:
        SegmentError: `/proc` cannot be read.
    """

def is_alive(pid: int, start: int, pid_namespace: int) -> bool:
    """Whether the process of that number and start runs. A zombie does not.

    What cannot be determined counts as alive, as does a process of another namespace. 0 stands for the own one.
    """

def is_ours(peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether the peer of a connection on this machine is this user or root; False if the kernel does not tell.

    `peer` and `own` are the numeric addresses and the ports of both ends.
    """

def end_after(pid: int, start: int, pid_namespace: int, grace_s: float) -> None:
    """Kill this process `grace_s` seconds after the process of that number and start has ended, without the GIL.

    The segments of dead owners are removed before.

    Raises:
        ConfigError: `grace_s` is negative.
        PeerLost: the kernel gives no descriptor of that process.
    """

def count_change(memory: Any) -> None:
    """Add one atomically to the first four bytes, a counter, and wake all threads that `wake` wakes.

    Raises:
        ConfigError: there are no four bytes, they are not aligned, or they cannot be written.
    """

def wake(memory: Any) -> None:
    """Wake all threads that block in `Client.leave_after` on the same memory, in all processes.

    Raises:
        ConfigError: there are no four bytes, or they are not aligned.
    """

@final
class Ahead:
    """Rows of a batch that a native thread fills with finished samples; it waits for no sample."""

    def finish(self) -> int:
        """Wait for the thread; return how many rows are filled, 0 on a second call.

        Raises:
            SegmentError: the slots cannot be read.
        """

@final
class GatherPipeline:
    """A queue of batches, and native threads that fill them in the order of their submission.

    Samples are taken for one batch after the other, and each goes to one row: rows are in the order of the stream, for any
    number of threads. A thread waits for samples as `Client.gather` does. Threads start with the first batch, and are
    blocked while there is nothing to fill. Made by `Client.gather_pipeline`.
    """

    def submit(self, product_id: str, n: int, targets: list[tuple[Any, ...]], done: int = 0) -> int:
        """Add a batch, see `Client.gather`; its number, counted from 0.

        The pipeline keeps the buffers until the batch is complete or taken back.

        Args:
            product_id: what is asked for.
            n: rows of the batch.
            targets: as for `Client.gather`.
            done: rows that are filled already, from the first on.

        Raises:
            ConfigError: the targets do not fit, or the pipeline is stopped.
            SegmentError: the client is closed, or the system has no thread.
            ForkedError: called in a fork.
        """

    def wait(self, timeout_ms: int) -> bool:
        """Wait until the oldest batch is complete, which removes it; whether it is.

        False when the time is over, and at once when the batch cannot be completed (`has_ended`) or there is none.

        Raises:
            WireError: a sample of the batch is not what a codec writes; see `has_ended`.
            SegmentError: the client is closed, or a slot cannot be read.
            ForkedError: called in a fork.
        """

    @property
    def has_ended(self) -> bool:
        """Whether nothing is filled any more until `take_back`, also no batch before the one that has failed.

        Because the client follows another product, or was closed, or a sample could not be copied.
        """

    def take_back(self) -> list[int]:
        """End the filling of all batches and remove them; the rows of each that are filled, from the first on.

        Waits for what is being copied, not for samples. Each sample that was taken is in one of these rows, unless one could
        not be copied: nothing is lost if the batches are submitted again with these numbers as `done`, or the stream is set
        back by their sum. The pipeline can be used again.
        """

    def stop(self) -> list[int]:
        """As `take_back`, and end the threads. A second call does nothing, nor does one in a fork."""

@final
class Broker:
    """A running broker: one native thread, from construction to `stop`."""

    def __new__(
        cls,
        frontend: str,
        backend: str,
        max_queue_per_product: int,
        max_order_attempts: int,
        peer_timeout_s: float,
        allow_remote: bool,
    ) -> Broker: ...
    @property
    def endpoints(self) -> tuple[str, str]:
        """Frontend and backend, wildcards resolved."""

    @property
    def is_running(self) -> bool:
        """Whether it still serves."""

    def stats(self) -> dict[str, Any]:
        """Return the fields of `softs_fast.BrokerStats`."""

    def next_log(self) -> tuple[int, str] | None:
        """Wait for the next log record: level and text; None once the broker has stopped."""

    def stop(self) -> None:
        """Close the endpoints and end the thread. Idempotent."""

@final
class Client:
    """A client of one broker: slots, orders, results. Timeouts in milliseconds.

    `segment`: the slots, if they are memory or a file of this host; suppliers then serve it through lanes. `medium`:
    its kind; only suppliers that can write to it are asked. `ordered`: samples of a product are delivered in the order
    of their sequence numbers. `prefetch`: samples ordered ahead at most. `block`: neighbouring slots that are handed
    out together. `share`: (i, n), its samples have the numbers i, i + n, i + 2n, ... `scribble`: free slots are
    overwritten. `spin_us`: how long a call polls before it blocks, as long as polling succeeds often enough.
    """

    def __new__(
        cls,
        endpoint: str,
        address: str,
        slot_size: int,
        n_slots: int,
        *,
        segment: Segment | None = None,
        medium: Literal["shm", "file", "tcp", "tickets"] | None = None,
        ordered: bool = False,
        prefetch: int | None = None,
        block: int = 1,
        share: tuple[int, int] = ...,
        scribble: bool = False,
        spin_us: float = 20.0,
    ) -> Client: ...
    def hello(self, timeout_ms: int) -> int | None:
        """Wait until a broker has answered our HELLO; return the number that it assigned."""

    @property
    def peer_id(self) -> int | None:
        """The number that the broker assigned."""

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        """Return a finished slot of the product; orders ahead with all free slots."""

    def request_slot(self, product_id: str, timeout_ms: int) -> str | None:
        """Put a free slot on order; return the order id."""

    def poll_completions(self, timeout_ms: int) -> int:
        """Wait for results; return how many arrived since the last call."""

    def take_completed(self) -> int | None:
        """Return the oldest finished slot."""

    def release_slot(self, slot_id: int) -> None:
        """Make a held slot free."""

    def gather(
        self,
        product_id: str,
        n: int,
        done: int,
        targets: list[tuple[Any, ...]],
        timeout_ms: int,
    ) -> int:
        """Fill rows done..n of each target; return how many rows are filled then.

        A target is (offset in the slot, writable buffer of n rows), or (offset, buffer of decoded rows, Codec). One may be
        (RaggedLayout, offsets, [values]), writable: int64 [tensors, n + 1], the first step of each row and the end of the
        last one, and for each tensor memory for n rows of the greatest length, of which the steps fill the first part.
        """

    def gather_ahead(self, product_id: str, n: int, targets: list[tuple[int, Any]]) -> Ahead:
        """Begin to fill all n rows of the targets in a native thread, see `gather`.

        Raises:
            ConfigError: the targets do not fit, or there is no segment.
            ForkedError: called in a fork.
        """

    def gather_pipeline(self, n_threads: int) -> GatherPipeline:
        """A queue of batches that native threads fill ahead; with 0 threads, `GatherPipeline.wait` fills them.

        Raises:
            ConfigError: there is no segment that samples lie in.
            SegmentError: the client is closed.
            ForkedError: called in a fork.
        """

    def lease(self, product_id: str, timeout_ms: int) -> Lease | None:
        """Return a block of slots with consecutive samples, held until the lease is garbage."""

    @property
    def n_blocks_held(self) -> int:
        """Blocks handed out and not released."""

    def lane_state(self, product_id: str) -> tuple[int, int]:
        """Return the number of suppliers of the product's lane, and of its orders that wait or are claimed."""

    @property
    def n_numbered(self) -> int:
        """How many numbers of its share were ordered of the product of which most were."""

    def position(self, product_id: str) -> int:
        """Return how many samples of the product's stream were handed out."""

    def seek(self, product_id: str, start: int, run: int, stride: int, position: int) -> tuple[int, int]:
        """Go to a position of the stream; its sample i has the number start + i // run * stride + i % run.

        Samples that are finished or on order, and that the stream hands out from there on, stay; return how many do, and
        how many do not.
        """

    def cancel(self, order_id: str, timeout_ms: int) -> bool:
        """Cancel an order that no supplier has; return whether it was cancelled."""

    def discard(self, timeout_ms: int) -> int:
        """Make all orders stale; return how many could be cancelled."""

    def follow(self, product_id: str, ahead: bool, timeout_ms: int) -> None:
        """Hand out samples of this product only; other orders are discarded, and waits for other products end."""

    def leave_after(self, product_id: str, memory: Any, word: int) -> bool:
        """Block while `memory` begins with `word`, then leave the product; may return early.

        To leave a product that is followed is to discard its orders and to let all requests return without a sample
        until `follow`. Returns whether the product was left.

        Raises:
            ConfigError: memory has no four aligned bytes.
        """

    def stats(self, product_id: str | None, timeout_ms: int) -> dict[str, Any] | None:
        """Return the broker's statistics, with `diagnosis` of the product if the broker supports it."""

    def failure(self, product_id: str) -> tuple[int, str] | None:
        """Return how many orders of the product failed in a row, and the text of the last failure."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection."""

    @property
    def n_held(self) -> int:
        """Slots handed out and not released."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: levels and texts."""

    def close(self) -> None:
        """Disconnect from the broker."""

@final
class ControlServer:
    """The broker's end of the control channel: one native thread, from construction to `stop`.

    `control` is the endpoint of students (ROUTER), `control_pub` that of subscribers (PUB). A TCP peer counts as dead
    after `dead_after_s` seconds without an answer to keep-alive probes.

    Raises:
        EndpointInUse: a live broker serves one of the endpoints, or its path is no socket.
        ConfigError: an endpoint is malformed, or other machines could reach it and `allow_remote` is False.
        PeerLost: the system refused something else.
    """

    def __new__(
        cls, control: str, control_pub: str, dead_after_s: float, allow_remote: bool
    ) -> ControlServer: ...
    @property
    def endpoints(self) -> tuple[str, str]:
        """Control and control_pub, wildcards resolved."""

    @property
    def is_running(self) -> bool:
        """Whether it still serves."""

    def stats(self) -> dict[str, Any]:
        """Return the state of the control channel.

        `generation` (0: no model yet), `model_id`, `model_cfg` (msgpack, empty without a model), `leader`: whether it
        is connected, `slot_size` of the leader, `students`: their ranks, `subscribers`: number of peers that subscribe
        to models, `waiting_s`: how long they have waited for a first one, seconds.
        """

    def next_log(self) -> tuple[int, str] | None:
        """Wait for the next log record: level and text; None once the channel has stopped."""

    def stop(self) -> None:
        """Close the endpoints and end the thread. Idempotent."""

@final
class ControlStudent:
    """A student's end of the control channel; rank 0 is the leader. Timeouts in milliseconds.

    A native thread connects at once and after each loss of the broker, and holds the seat of the rank until `close`.
    Configurations of models are one msgpack value each; an empty one stands for nil. `rank` has 32 bits, `slot_size`
    (bytes) 64.

    Raises:
        ConfigError: the endpoint is malformed.
        OverflowError: a number is negative or has too many bits.
        PeerLost: the system is out of descriptors or threads.
    """

    def __new__(cls, endpoint: str, rank: int, slot_size: int) -> ControlStudent: ...
    def hello(self, timeout_ms: int) -> tuple[int, int, str, bytes] | None:
        """Wait until a broker has granted the seat of this rank.

        Returns:
            Our number, and generation, model_id and model_cfg of the newest known model; a second call returns the
            present one. Generation 0 and an empty configuration without a model. None: no answer in time, see
            `connection_error`.

        Raises:
            ConfigError: the broker refuses, because a live student has this rank. A further call asks again.
            ForkedError: called in a fork.
        """

    def set_model(self, model_id: str, model_cfg: bytes, timeout_ms: int) -> int:
        """Make the workers run this model; return its generation.

        The request is repeated at the next broker if this one is lost meanwhile. After a time-out it is unknown whether
        the model was set; the next model gets a higher generation in any case.

        Raises:
            ConfigError: refused, because this is not the leader or its rank is taken; or `model_id` is too long (1,024
                bytes), or `model_cfg` is not one msgpack value or too long (1 MiB less 4 KiB).
            BrokerTimeout: no answer in time.
            ForkedError: called in a fork.
        """

    def stop_workers(self, timeout_ms: int) -> None:
        """Stop all workers.

        Raises:
            ConfigError: refused, because this is not the leader or its rank is taken.
            BrokerTimeout: no answer in time.
            ForkedError: called in a fork.
        """

    def note_model(self, generation: int, model_id: str, model_cfg: bytes) -> None:
        """Note a model that was received elsewhere, so that a restarted broker is told of it.

        Raises:
            ConfigError: as in `set_model`.
            ForkedError: called in a fork.
        """

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection; None while there is one."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: level and text."""

    def close(self) -> None:
        """Release the seat and end the thread. Idempotent."""

@final
class ControlSubscriber:
    """Receives what the control channel publishes, from any broker at the endpoint; connects during `next_event`.

    Raises:
        ConfigError: the endpoint is malformed.
        PeerLost: the system is out of descriptors.
    """

    def __new__(cls, endpoint: str) -> ControlSubscriber: ...
    def next_event(
        self, timeout_ms: int | None
    ) -> tuple[Literal["MODEL"], int, str, bytes] | tuple[Literal["STOP"]] | None:
        """Wait for the next event; without a time-out the wait has no limit.

        The present model is an event of every new connection. Of the events since the last call only the newest MODEL
        and the newest STOP are kept, in their order.

        Returns:
            MODEL with generation, model_id and model_cfg (msgpack); or STOP; or None: time-out, or closed.

        Raises:
            ForkedError: called in a fork.
        """

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection; None while there is one, or before the first `next_event`."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: level and text."""

    def close(self) -> None:
        """End the connection, and a wait of `next_event` in another thread. Idempotent."""

@final
class FlowClient:
    """A worker's end of the control stream of a flow: one native thread, from construction to `close` or its end.

    `credentials`: as of `HostLink`; None: plain, on this host alone. `limits`: bytes of a frame, bytes that may wait to be
    sent, bytes that may wait to be received, workers, seconds of the handshake. Time-outs in seconds.

    Raises:
        HelloError: one end refused the other.
        PeerLost: no master listens there, or the system refused something.
        ConfigError: endpoint or credentials are malformed, or credentials are needed.
        OverflowError: a number is negative or has too many bits.
    """

    def __new__(
        cls,
        endpoint: str,
        worker: int,
        host: str,
        credentials: tuple[bytes, list[bytes], list[bytes]] | None,
        limits: tuple[int, int, int, int, float],
    ) -> FlowClient: ...
    @property
    def ended(self) -> str | None:
        """How the connection ended; None while there is one."""

    def publish(self, what: str, value: bytes) -> None:
        """Answer questions of this name with this value.

        Raises:
            ConfigError: name or value are too long, or there are too many names.
        """

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; returns the descriptor that the handler writes to, which the caller closes.

        Raises:
            PeerLost: the system has no more descriptors.
        """

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer questions of this name with what the handler of a signal writes in the thread of the caller.

        Raises:
            ConfigError: the signal has no handler, the name is too long, or there is no pipe.
        """

    def send(self, payload: bytes) -> None:
        """Send a message.

        Raises:
            PeerBusy: too much waits for the master.
            PeerLost: the connection has ended.
            ConfigError: it is too long.
        """

    def receive(self, timeout_s: float | None) -> list[bytes] | None:
        """Wait for messages; empty once the connection has ended and all were taken. None: the time is over."""

    def close(self, timeout_s: float) -> None:
        """Write what was sent, `timeout_s` seconds at most, and leave. Idempotent."""

@final
class RowServer:
    """Serves the values of one segment to processes with credentials: one native thread, until `close`.

    `file`: descriptor of the segment, opened again for reading. `first`: byte of the file at which its data begins.
    `segment`: its random number. `stall_s`: how long a reader may take nothing.

    Raises:
        ConfigError: endpoint or credentials are malformed.
        EndpointInUse: a process listens there.
        SegmentError: the descriptor cannot be opened again.
        PeerLost: the system refused something.
    """

    def __new__(
        cls,
        endpoint: str,
        credentials: tuple[bytes, list[bytes], list[bytes]],
        file: int,
        first: int,
        n_bytes: int,
        segment: bytes,
        stall_s: float,
    ) -> RowServer: ...
    @property
    def endpoint(self) -> str:
        """Where readers connect to, wildcards resolved."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that were written to readers, with headers."""

    def close(self) -> None:
        """End all connections. Idempotent; in a fork it does nothing."""

@final
class Mesh:
    """Connections between all ranks of a group on several hosts, one for each pair. It listens from the beginning, for `join`.

    Args:
        endpoint: Where it listens, such as `tcp://10.0.0.5:0`.
        credentials: What all ranks show each other, as `TlsFiles.der` returns it; None for ranks of this user on this host.
        plain: Whether ranks of other hosts may connect without credentials.

    Raises:
        ConfigError: the endpoint or the credentials are malformed, or others could connect and `plain` is False.
        EndpointInUse: a process listens there.
        PeerLost: the system has no more descriptors.
    """

    def __new__(
        cls, endpoint: str, credentials: tuple[bytes, list[bytes], list[bytes]] | None, plain: bool
    ) -> Mesh: ...
    @property
    def endpoint(self) -> str:
        """Where others connect to."""

    @property
    def key(self) -> bytes:
        """16 random bytes that others have to show."""

    @property
    def lost(self) -> list[int]:
        """Ranks of which the connection had ended, or which did not answer, when a call failed."""

    @property
    def ended(self) -> list[int]:
        """Ranks of which the connection has ended."""

    def join(self, rank: int, peers: list[tuple[str, bytes]], timeout_s: float) -> None:
        """Connect with all other ranks; each one calls it once.

        Args:
            rank: Number of this rank.
            peers: `endpoint` and `key` of each rank, this one too.
            timeout_s: Seconds to wait for all.

        Raises:
            PeerLost: a rank is not reached, is refused or refuses this one, or has not come in time; its number is in the text.
        """

    def drain(self, timeout_s: float) -> None:
        """Wait until the hosts of the other ranks have all that was sent: an end of the connections may lose the rest.

        Args:
            timeout_s: Seconds in which they may take nothing.
        """

    def exchange(
        self, sends: list[tuple[int, object]], receives: list[tuple[int, object]], timeout_s: float
    ) -> None:
        """Send and receive whole messages, without the GIL. Calls take turns.

        The n-th message that a rank expects from another one is the n-th that this one has sent it, in whichever calls, and
        has as many bytes. Empty ones are not sent.

        Args:
            sends: Rank and memory of each message to others.
            receives: Rank and writable memory of each message from others.
            timeout_s: Seconds in which no byte may move.

        Raises:
            ConfigError: there is no such rank, or memory is not contiguous or not writable; nothing was sent.
            PeerLost: a rank has left, does not answer, is late, or sends another number of bytes; its number is in the text.
                From then on each call raises it.
        """

    def shut_down(self) -> None:
        """End pending calls here and on the other ranks; later ones raise PeerLost. Idempotent, from any thread."""

@final
class RowReader:
    """A connection to a row server. Its calls take turns.

    Raises:
        HelloError: one end refused the other.
        PeerLost: no process listens there, or it does not answer in time.
        ConfigError: endpoint or credentials are malformed.
    """

    def __new__(
        cls, endpoint: str, credentials: tuple[bytes, list[bytes], list[bytes]], timeout_s: float
    ) -> RowReader: ...
    def read(self, segment: bytes, values: bytes, out: object, stall_s: float) -> tuple[int, bool] | None:
        """Read values of a segment into memory, without the GIL.

        `values`: for each, four u64, little-endian: offset and bytes in the segment, serial number, offset in `out`.

        Returns:
            None when all are there. Otherwise the number of the first that is gone, and whether the process there has
            another segment; the connection has ended then.

        Raises:
            PeerLost: the connection has ended, nothing came for `stall_s` seconds, or an earlier read has failed.
            ConfigError: a value does not fit into `out`, or that is read-only.
        """

@final
class FlowServer:
    """The master's end of the control stream of a flow: one native thread, from construction to `close`.

    `limits` as those of `FlowClient`. Time-outs in seconds.

    Raises:
        EndpointInUse: a process listens there already, or its path is no socket.
        ConfigError: endpoint or credentials are malformed, or credentials are needed.
        PeerLost: the system refused something else.
        OverflowError: a number is negative or has too many bits.
    """

    def __new__(
        cls,
        endpoint: str,
        credentials: tuple[bytes, list[bytes], list[bytes]] | None,
        limits: tuple[int, int, int, int, float],
        dead_after_s: float,
    ) -> FlowServer: ...
    @property
    def endpoint(self) -> str:
        """Where workers connect to, wildcards resolved."""

    def send(self, worker: int, payload: bytes) -> None:
        """Send a message.

        Raises:
            PeerBusy: too much waits for the worker.
            PeerLost: it is not connected.
            ConfigError: the message is too long.
        """

    def receive(
        self, timeout_s: float | None
    ) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]], str | None] | None:
        """Wait for something.

        Returns:
            Events: ("joined", worker, pid, host), ("received", worker, payload), ("left", worker, reason).
            Lines of log: level and text. Why nothing more comes, if so. None: the time is over.
        """

    def ask(self, worker: int, what: str, timeout_s: float) -> tuple[bytes, int] | None:
        """Return what a worker has published and its age in microseconds; None: the time is over.

        Raises:
            PeerLost: it is not connected, or leaves.
            PeerBusy: too much waits for it.
            ConfigError: it has published nothing of this name.
        """

    def close(self, timeout_s: float) -> None:
        """Write what was sent, `timeout_s` seconds at most, and end all connections. Idempotent."""

@final
class HostLink:
    """The links of this host to others: one native thread, from construction to `stop`.

    `listen`, `connect`: ``tcp://HOST:PORT``. `frontend`, `backend`, `control`: the broker of this host; without the last
    one no models are carried. `credentials`: key (PKCS#8), certificates, own one first, and CAs of peers, in DER; None for
    a plain link, which stays on loopback. `connections`: 1 to 4 with each host; None: as many as the line needs.

    Raises:
        EndpointInUse: a process listens there already.
        ConfigError: an endpoint or the credentials are malformed, or other machines could reach a plain link.
        PeerLost: the system refused the address.
    """

    def __new__(
        cls,
        listen: str | None,
        connect: Sequence[str],
        frontend: str,
        backend: str,
        control: str | None,
        credentials: tuple[bytes, Sequence[bytes], Sequence[bytes]] | None,
        connections: int | None,
    ) -> HostLink: ...
    @property
    def endpoint(self) -> str | None:
        """Where it listens, with the real port; None if it does not."""

    @property
    def n_sessions(self) -> int:
        """Number of hosts that are connected now."""

    @property
    def owes(self) -> bool:
        """Whether other hosts wait for samples of this one."""

    def next_log(self) -> tuple[int, str] | None:
        """Wait for the next log record: level and text; None once the link has stopped."""

    def drain(self) -> None:
        """Give orders of other hosts back that no supplier has begun with, and take none any more."""

    def stop(self) -> None:
        """End all sessions and the thread. Idempotent; does nothing in a fork."""

@final
class Codec:
    """An encoding that reads a tensor once. Immutable."""

    @staticmethod
    def cast(dtype: str, stored: str) -> Codec:
        """Return the codec of floats of `dtype` that are stored in a smaller float dtype."""

    @staticmethod
    def int8(dtype: str, block: int, scale: str) -> Codec:
        """Return the codec of floats that are stored as int8 and a scale per block."""

    @staticmethod
    def indices(row_len: int) -> Codec:
        """Return the codec of int64 below row_len that are stored as uint16 if they fit, or as int32."""

    def encoded_len(self, n_bytes: int) -> int:
        """Return the encoded size of n_bytes of elements, bytes."""

    def encode(self, values: Any, outs: list[Any], offset: int) -> None:
        """Encode a buffer of `len(outs)` equal rows, each into a writable buffer from byte `offset` on.

        Raises:
            ConfigError: a value that this encoding cannot hold, or a length that does not fit.
        """

    def decode(self, sources: list[Any], offset: int, out: Any) -> None:
        """Decode each of some buffers from byte `offset` on, into rows of one writable buffer.

        Raises:
            ConfigError: a length that does not fit.
            WireError: a buffer has content that no encoder writes.
        """

def copy_rows(rows: Any, outs: list[memoryview], offset: int) -> None:
    """Copy each row of `rows` to one of `outs`, from byte `offset` of it on.

    Slots are written with the stores that their client advises, other memory with ordinary ones.

    Args:
        rows: contiguous bytes, as many rows of one size as there are `outs`.
        outs: writable bytes, contiguous.
        offset: where a row begins in each.

    Raises:
        ConfigError: a row does not fit, or the rows are not as many.
    """

@final
class RaggedLayout:
    """Where the tensors of varying length are in a slot, see `softs_fast.configs.ragged`.

    Args:
        values_at: where the values of the first one begin, bytes.
        tensors: (name, bytes of a step along the first dimension, greatest length) of each.

    Raises:
        ConfigError: there is no tensor, the values overlap the lengths, or the sizes overflow.
    """

    def __new__(cls, values_at: int, tensors: Sequence[tuple[str, int, int]]) -> RaggedLayout: ...
    def write(self, columns: list[tuple[list[int], Any]], outs: list[memoryview]) -> None:
        """Write lengths and values of one sample to each of `outs`, with the stores of `copy_rows`.

        Args:
            columns: for each tensor its length in each sample, and its values: contiguous bytes of all samples, or a list
                with those of each.
            outs: writable bytes, contiguous.

        Raises:
            ConfigError: a length that no sample has, or lengths, values and memory that do not fit each other.
        """

@final
class Lease:
    """Slots as writable bytes, through the buffer protocol; released with the last reference to it."""

    @property
    def first_slot(self) -> int:
        """The first of the slots."""

    @property
    def is_gone(self) -> bool:
        """Whether the owner of the slots has closed or replaced them."""

    def reserve(self, start: int, n: int) -> Lease:
        """Allocate and return memory of the first slot. Raises SegmentError if there is no space for it."""

    def __len__(self) -> int: ...

@final
class StoreServer:
    """Keys and values for `StoreClient`s, served by a thread without the GIL.

    Args:
        endpoint: Where it listens, such as `tcp://10.0.0.5:0`.
        credentials: What both ends show each other, as `TlsFiles.der` returns it; None for processes of this user on this host.
        most_bytes: Bytes of all keys and values.

    Raises:
        ConfigError: the endpoint or the credentials are malformed, or other machines could connect without credentials.
        EndpointInUse: a process listens there.
        PeerLost: the address is none of this machine, or the system has no more descriptors.
    """

    def __new__(
        cls, endpoint: str, credentials: tuple[bytes, list[bytes], list[bytes]] | None, most_bytes: int
    ) -> StoreServer: ...
    @property
    def endpoint(self) -> str:
        """Where clients connect to, wildcards resolved."""

    def close(self) -> None:
        """End all connections; a second call does nothing."""

@final
class StoreClient:
    """Asks a `StoreServer`; each call gives the GIL up, and returns None if there is no reply within `timeout_s`.

    A call that waits has a connection for itself, so it holds up no other one.

    Args:
        endpoint: Where the server listens.
        credentials: What both ends show each other; None for a server of this user on this host.
        timeout_s: Seconds within which it begins to listen.

    Raises:
        ConfigError: the endpoint or the credentials are malformed, or it is on another host and there are no credentials.
        PeerLost: nothing listens there, or one of both ends refuses the other.
    """

    def __new__(
        cls, endpoint: str, credentials: tuple[bytes, list[bytes], list[bytes]] | None, timeout_s: float
    ) -> StoreClient: ...
    def set(self, key: bytes, value: bytes, timeout_s: float) -> bool | None:
        """Store a value; return True.

        Raises:
            ConfigError: the store is full.
            PeerLost: the server has ended, or refuses the request; so do all others.
        """

    def get(self, key: bytes, timeout_s: float) -> bytes | None:
        """Return a value, once there is one."""

    def add(self, key: bytes, amount: int, timeout_s: float) -> int | None:
        """Add to a number, 0 at first; return the sum.

        Raises:
            ConfigError: the value of the key is no number, or the sum has more than 64 bits.
        """

    def compare_set(self, key: bytes, expected: bytes, desired: bytes, timeout_s: float) -> bytes | None:
        """Store a value if the present one is `expected`, or there is none and that is empty; return the value afterwards."""

    def check(self, keys: list[bytes], timeout_s: float) -> bool | None:
        """Return whether all keys have values."""

    def wait(self, keys: list[bytes], timeout_s: float) -> bool | None:
        """Return True, once all keys have values."""

    def delete(self, key: bytes, timeout_s: float) -> bool | None:
        """Remove a key; return whether there was one."""

    def count(self, timeout_s: float) -> int | None:
        """Return how many keys there are."""

@final
class Supplier:
    """A supplier of one broker. Orders arrive through the lanes of clients on this machine, and from the broker."""

    def __new__(
        cls,
        endpoint: str,
        product_ids: list[str],
        name: str,
        slot_size: int,
        medium: Literal["shm", "file", "shm or file", "tcp", "tickets"] | None,
        file_dirs: list[str],
        weights: list[tuple[str, int]],
        spin_us: float,
    ) -> Supplier: ...
    def hello(self, timeout_ms: int) -> int | None:
        """Wait until a broker has answered our HELLO; return the number that it assigned."""

    def serve(
        self,
        generator_fn: Callable[[], Any],
        wire_fn: Callable[[str, tuple[str, int], int, int, int], str | None],
        error_fn: Callable[[str, object], str],
        max_wait_ms: float,
    ) -> None:
        """Work until `stop`, in this thread.

        Args:
            generator_fn: the generator, a `market.generators.Generator`; called at the start and after `renew`.
            wire_fn: serves one lease: product id, medium (address, and the number of its segment, 0: unknown), offset,
                slot size of the client (0: unknown), sequence number. Returns None, or the error for the client.
            error_fn: logs a failure in a lane: product id, and the exception or a text. Returns the error for the
                client.
            max_wait_ms: how long a batch that is not full waits for more orders, milliseconds.

        Raises:
            BaseException: raised by the generator and no Exception; the claimed orders are returned.
        """

    def renew(self) -> None:
        """Make `serve` call `generator_fn` again before the next sample."""

    def note_made(self) -> None:
        """Say that the sample of the current lease is made; the rest of the call waits for the wire."""

    def may_write(self) -> bool:
        """Return whether the connection that gave the current lease is up."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection."""

    def take_log(self) -> list[tuple[int, str]]:
        """The log records since the last call: levels and texts."""

    def stop(self) -> None:
        """Say GOODBYE and make `next` return None. Idempotent."""

    def close(self) -> None:
        """Disconnect; the broker gives our leases to other suppliers."""

@final
class Segment:
    """Shared memory or a file, owned or attached. After a fork both processes may use it."""

    @staticmethod
    def create_shm(
        name: str | None,
        slot_size: int,
        n_slots: int,
        slot_stride: int | None = None,
        ragged: RaggedLayout | None = None,
    ) -> Segment:
        """Create and lock shared memory; without a name, under a random one. `ragged`: the layout of its samples."""

    @staticmethod
    def create_tickets(name: str | None, slot_size: int, n_slots: int) -> Segment:
        """Create as `create_shm` does, for slots with tickets; only the first 4096 bytes of each are allocated."""

    @staticmethod
    def create_file(path: str, slot_size: int, n_slots: int, slot_stride: int | None = None) -> Segment:
        """Create and lock a file, or overwrite one that no live client owns."""

    @staticmethod
    def attach_shm(name: str) -> Segment:
        """Attach to shared memory of our own user."""

    @staticmethod
    def attach_tickets(name: str) -> Segment:
        """Attach to a segment that `create_tickets` made, in a process of our own user."""

    @staticmethod
    def attach_file(path: str, allowed_dirs: list[str] | None = None) -> Segment:
        """Attach to a file: any, or one in these directories or created by softs-fast."""

    @property
    def address(self) -> str:
        """Name or path by which peers attach."""

    @property
    def is_owner(self) -> bool:
        """Whether this handle created it."""

    @property
    def segment_id(self) -> int:
        """Its random number, which orders name; 0 in a segment of softs."""

    @property
    def slot_size(self) -> int:
        """Bytes of one slot; 0: unknown."""

    @property
    def slot_stride(self) -> int:
        """Bytes from one slot to the next; 0 in a segment of softs."""

    @property
    def n_slots(self) -> int:
        """Number of slots; 0: unknown."""

    @property
    def slots_len(self) -> int:
        """Bytes that can be read and written."""

    def is_named(self, number: int) -> bool:
        """Return whether the number of an order by wire names this segment, in whatever epoch."""

    @property
    def is_gone(self) -> bool:
        """Whether the owner has removed it, so that no client will read what is written."""

    def write(self, offset: int, data: Any) -> None:
        """Write any C-contiguous buffer at a byte offset."""

    def write_slot(self, offset: int, data: Any) -> None:
        """Write as `write` does, but exactly one slot if slot_size is known."""

    def write_locked(self, offset: int, data: Any, may_write: Callable[[], bool], number: int) -> bool:
        """Lock the slot, and write if its client still waits for the order with this number and may_write returns True.

        Returns:
            Whether that was so.
        """

    def read(self, offset: int, n: int) -> bytes:
        """Copy n bytes out."""

    def read_into(self, offset: int, buffer: Any) -> None:
        """Fill a writable, C-contiguous buffer."""

    def reserve(self, offset: int, n: int) -> Lease:
        """Allocate and return memory of the slots. Raises SegmentError if there is no space for it."""

    def ensure_linked(self) -> bool:
        """Restore a name that was removed; return whether it was missing."""

    def close(self) -> None:
        """Unmap and unlock. Idempotent."""

    def unlink(self) -> None:
        """Remove the names, as the owner, also after `close`. Idempotent."""

@final
class TopK:
    """The k largest of rows of logits, their indices and the log-sum-exps of the rows. Immutable."""

    def __new__(cls, dtype: str, row_len: int, k: int) -> TopK: ...
    def encode(self, values: Any, outs: list[Any], offset: int) -> None:
        """Encode a buffer of `len(outs)` equal groups of rows, each into a writable buffer from byte `offset` on.

        Raises:
            ConfigError: a length that does not fit.
        """

@final
class Viewer:
    """A client that only reads statistics: it has no slots and orders nothing."""

    def __new__(cls, endpoint: str) -> Viewer: ...
    @property
    def peer_id(self) -> int | None:
        """The number that the broker assigned."""

    @property
    def connection_error(self) -> str | None:
        """Why there is no connection."""

    def detail(self, timeout_ms: int) -> dict[str, Any] | None:
        """Return the broker's statistics, with `clients`, `suppliers` and `products` (docs/wire.md) if it lists them.

        The lanes of a client are (product id, lane or None, generation).
        """

    def close(self) -> None:
        """Disconnect from the broker."""
