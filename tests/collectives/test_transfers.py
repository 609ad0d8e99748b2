"""What moves between nodes: the comparison of calls once for each call, and no byte that no rank there needs."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hierarchies
import pytest
import ranks
import torch

from softs_fast.collectives import LinkStrategy, Strategy
from softs_fast.collectives.levels import Levels
from softs_fast.collectives.link_engine import LinkEngine
from softs_fast.collectives.nodes import Topology
from softs_fast.collectives.placement import Placement
from softs_fast.errors import PeerLost
from softs_fast.kernels import reduce

# Longer than the test's own limit.
NEVER_S = 300.0
CHUNK = 1 << 20  # float32 of a chunk of 4 MiB
OPS = ("sum", "mean", "max")


def counted(strategy: Strategy, call: Callable[[], object]) -> dict[str, tuple[int, int]]:
    """Return calls of the engine on this rank, and bytes that it sends, by name."""
    strategy.barrier()
    hierarchies.Counting.reset()
    call()
    counting = hierarchies.Counting
    return {name: (count, counting.n_bytes[name]) for name, count in counting.calls.items()}


def all_calls(strategy: Strategy) -> list[dict[str, tuple[int, int]]]:
    size = strategy.size
    large = torch.ones(3 * CHUNK)
    output = torch.empty(3 * CHUNK // size)
    return [
        counted(strategy, call)
        for call in (
            lambda: strategy.all_reduce(large),
            lambda: strategy.all_reduce_gradients({"a": large, "b": torch.ones(2)}),
            lambda: strategy.reduce_scatter(output, large),
            lambda: strategy.broadcast_tensor(large, 0),
            lambda: strategy.all_gather(torch.empty(2 * size), torch.ones(2)),
            strategy.barrier,
        )
    ]


def counts_between_nodes(
    say: Callable[[Any], None], rank: int, size: int, folder: str
) -> list[dict[str, tuple[int, int]]]:
    hierarchies.Counting.install()
    with hierarchies.joined(rank, [[0, 1], [2, 3]], folder) as strategy:
        return all_calls(strategy)


def test_calls_are_compared_once_between_nodes_whatever_the_number_of_chunks(tmp_path: Any) -> None:
    told = ranks.run(counts_between_nodes, 4, str(tmp_path))
    whole = 4 * 3 * CHUNK
    for rank, calls in enumerate(told):
        # The first rank of a node compares, and none compares chunks again.
        compared = 16 if rank % 2 == 0 else 0
        once = 1 if compared else 0
        reduced, gradients, scattered, broadcast, gathered, barrier = calls
        assert reduced == {"all_reduce": (3 + once, whole // 2 + compared)}
        assert gradients == {"all_reduce": (4 + once, whole // 2 + 4 + compared)}
        assert scattered.pop("reduce_scatter") == (3, whole // 4), "half of a slice"
        assert scattered == barrier == ({"all_reduce": (1, 16)} if compared else {})
        assert broadcast.pop("broadcast") == (1, whole // 2 if rank < 2 else 0)
        assert gathered.pop("broadcast") == (2, 8)
        assert broadcast == gathered == barrier


def counts_the_engine(
    say: Callable[[Any], None], rank: int, size: int, folder: str
) -> list[dict[str, tuple[int, int]]]:
    hierarchies.Counting.install()
    with LinkStrategy(timeout_s=20).init(rank, size, folder) as strategy:
        return all_calls(strategy)


def test_the_engine_alone_compares_once(tmp_path: Any) -> None:
    whole = 4 * 3 * CHUNK
    slices = torch.tensor_split(torch.empty(CHUNK), 3)
    for rank, calls in enumerate(ranks.run(counts_the_engine, 3, str(tmp_path))):
        # To each of the two others.
        compared = {"gather": (1, 2 * 8)}
        reduced, gradients, scattered, broadcast, gathered, barrier = calls
        # Their slices, and its own when it is reduced.
        sent = whole + 3 * slices[rank].nbytes
        assert reduced == {**compared, "all_reduce": (1, sent)}
        assert gradients == {**compared, "all_reduce": (2, sent + 2 * 8)}
        assert scattered == {**compared, "reduce_scatter": (1, whole * 2 // 3)}
        assert broadcast == {**compared, "broadcast": (1, whole // (2 if rank else 1))}
        assert gathered == {**compared, "all_gather": (1, 2 * 8)}
        assert barrier == compared


def scatters(say: Callable[[Any], None], rank: int, size: int, folder: str, nodes: list[list[int]]) -> int:
    """Compare with all-reduces of the same tensors; return the bytes that this rank sends to other nodes."""
    hierarchies.Counting.install()
    sent = 0
    with hierarchies.joined(rank, nodes, folder) as strategy:
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            for count, ops in ((1, OPS), (7, OPS), (CHUNK // size + 3, ("mean",))):
                for op in ops:
                    generator = torch.Generator().manual_seed(100 * rank + count)
                    tensor = (20 * torch.randn(size * count, generator=generator)).to(dtype)
                    wanted = tensor.clone()
                    strategy.all_reduce(wanted, op)
                    mine = wanted[rank * count : (rank + 1) * count]
                    output = torch.empty(count, dtype=dtype)
                    hierarchies.Counting.reset()
                    strategy.reduce_scatter(output, tensor, op)
                    sent = hierarchies.Counting.n_bytes["reduce_scatter"]
                    assert torch.equal(output, mine), "the bits of an all-reduce"
                    # Into the part itself.
                    part = tensor[rank * count : (rank + 1) * count]
                    strategy.reduce_scatter(part, tensor, op)
                    assert torch.equal(part, output)
    return sent


@pytest.mark.parametrize("nodes", [[[0, 2], [1, 3]], [[2], [0, 1, 3]], [[0], [1], [2]]])
def test_a_reduce_scatter_moves_what_the_ranks_of_other_nodes_get(
    tmp_path: Any, nodes: list[list[int]]
) -> None:
    size = sum(map(len, nodes))
    sent = ranks.run(scatters, size, str(tmp_path), nodes)
    count = CHUNK // size + 3
    for node in nodes:
        # All parts of other nodes, once, by the ranks of this node together.
        assert sum(sent[rank] for rank in node) == 4 * count * (size - len(node))
    n_slices = min(map(len, nodes))
    assert all(sent[rank] == 0 for node in nodes for rank in node[n_slices:])


def scatters_alone(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with LinkStrategy(timeout_s=20).init(rank, size, folder) as strategy:
        for dtype in (torch.float32, torch.float16, torch.int8, torch.bool):
            every = [
                (20 * torch.randn(size * 9, generator=torch.Generator().manual_seed(other))).to(dtype)
                for other in range(size)
            ]
            for op in ("sum", "mean", "min", "max"):
                if op == "mean" and dtype is torch.bool:
                    continue
                wanted = torch.empty(size * 9, dtype=dtype)
                reduce(every, wanted, op)
                output = torch.empty(3, 3, dtype=dtype)
                strategy.reduce_scatter(output, every[rank].clone(), op)
                assert torch.equal(output.view(-1), wanted[rank * 9 : (rank + 1) * 9]), (dtype, op)


def test_the_engine_adds_the_parts_in_the_order_of_the_ranks(tmp_path: Any) -> None:
    ranks.run(scatters_alone, 3, str(tmp_path))


@pytest.mark.parametrize(
    "sizes", [[1], [4], [1, 1], [2, 2, 2], [1, 3], [3, 1, 2], [2, 5], [7, 3, 4], [1, 1, 8]]
)
@pytest.mark.parametrize("width", [1, 5])
def test_every_part_comes_to_its_rank(sizes: list[int], width: int) -> None:
    """Follow each element, by its number, from the packed order to the rank that needs it."""
    nodes = hierarchies.in_blocks(sizes)
    size = sum(sizes)
    parts = torch.arange(size * width).view(size, width)
    topology = Topology(0, tuple(map(tuple, nodes)), 0)
    place = Placement(topology, width)
    packed = place.packed(parts)
    assert sorted(packed.tolist()) == list(range(size * width))
    for number, node in enumerate(nodes):
        inside = place.inside(len(node))
        assert inside[0] == 0
        assert inside[-1] == len(packed)
        rests = []
        for rank in range(topology.n_slices):
            own = packed[inside[rank] : inside[rank + 1]]
            between = place.between(rank)
            assert between[-1] == len(own)
            mine = own[between[number] : between[number + 1]]
            assert torch.equal(mine[:width], parts[node[rank]])
            rests.append(mine[width:])
        rest = torch.cat(rests)
        assert [len(share) for share in rests] == [end - begin for begin, end in pairwise(place.rest(number))]
        assert torch.equal(rest, parts[node[topology.n_slices :]].reshape(-1))
        # No slice is much larger than another.
        lengths = [end - begin for begin, end in pairwise(inside[: topology.n_slices + 1])]
        assert max(lengths) - min(lengths) <= len(nodes)


def interrupt_transfers() -> None:
    """Have a signal arrive in the middle of the next all-reduce, after the comparison of calls."""
    exchange = LinkEngine.exchange

    def interrupted(engine: LinkEngine, sends: Any, receives: Any) -> None:
        if max(len(memory) for _, memory in sends) > 64:
            raise KeyboardInterrupt
        exchange(engine, sends, receives)

    LinkEngine.exchange = interrupted  # type: ignore[method-assign]


def is_interrupted(say: Callable[[Any], None], rank: int, size: int, folder: str, kind: str) -> str:
    strategy: Strategy
    if kind == "engine":
        strategy = LinkStrategy(timeout_s=NEVER_S).init(rank, size, folder)
    else:
        nodes = [[0], [1]] if kind == "transfer" else [[0, 1]]
        strategy = hierarchies.joined(rank, nodes, folder, NEVER_S)
    if rank == 0 and kind == "chunk":
        # Between the reductions of two chunks inside the node.
        Levels._overlap = interrupt
    if rank == 0:
        interrupt_transfers()
    with pytest.raises(KeyboardInterrupt if rank == 0 else PeerLost):
        strategy.all_reduce(torch.ones(CHUNK))
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(torch.ones(CHUNK))
    strategy.close()
    return str(raised.value)


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["engine", "transfer", "chunk"])
def test_an_interrupt_in_the_middle_of_a_call_ends_it_on_all_ranks(tmp_path: Any, kind: str) -> None:
    told = ranks.run(is_interrupted, 2, str(tmp_path), kind)
    assert "KeyboardInterrupt" in told[0]
    # Rank 0 may have ended before its reason is read.
    assert "KeyboardInterrupt" in told[1] or (kind != "chunk" and "rank 0" in told[1])
