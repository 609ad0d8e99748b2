"""A state that follows another one by its gradients: the same bits, or a digest that differs."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_training_state import Net, Wire, assert_same, cases, optimizer_of
from torch import nn, optim

from softs_fast.coordination.node import TrainingState, following
from softs_fast.coordination.node.sent_trees import digest, send_tree
from softs_fast.coordination.node.state_tree import decode_tree, encode_tree
from softs_fast.errors import ConfigError


def train(state: TrainingState, step: int) -> None:
    """Give the weights gradients, as the body of a step does."""
    generator = torch.Generator().manual_seed(step)
    for number, one in enumerate(state.model.parameters()):
        # The second one has no gradient in the fourth step.
        one.grad = (
            torch.randn(one.shape, generator=generator).to(one.dtype) if not number or step != 4 else None
        )


def decoded(encoded: tuple[bytes, dict[str, torch.Tensor]]) -> Any:
    text, tensors = encoded
    sent = collections.deque(tensors.values())

    def receive(tensor: torch.Tensor) -> None:
        tensor.copy_(sent.popleft())

    return decode_tree(text, receive)


def follow(
    source: TrainingState, target: TrainingState, n_steps: int, change: Callable[[int], object]
) -> None:
    """Have one state follow another one for some steps, from its second step on."""
    for step in (1, 2):
        train(source, step)
        source.apply()
    target.load(decoded(source.snapshot({})))
    for step in range(3, 3 + n_steps):
        change(step)
        train(source, step)
        reduced = source.reduced({})
        source.apply()
        target.replay(decoded(reduced))


def hand_over(source: TrainingState, target: TrainingState) -> int:
    """Copy what steps have not brought; return how many tensors that are."""
    wire: Any = Wire()
    assert source.send(wire, to_followers=True) == ""
    n_sent = len(wire._sent) - 2
    wire.rank = 1
    target.load(target.receive(wire, 0, is_follower=True))
    assert wire.is_empty
    return n_sent


def states(name: str, flags: dict[str, Any], dtype: torch.dtype) -> tuple[TrainingState, TrainingState]:
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        net = Net(dtype)
        net.register_buffer("seen", torch.zeros(1))
        found.append(TrainingState(net, optimizer_of(name, flags, net)))
    return found[0], found[1]


def test_the_snapshot_is_freed_before_the_next_step_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has its state twice already."""
    source, target = states("Adam", {}, torch.float32)
    received: list[weakref.ref[torch.Tensor]] = []
    load = target.load

    class Engine(Wire):
        def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
            assert all(one() is None for one in received)
            super().broadcast_tensor(tensor, root)

        def barrier(self) -> None:
            pass

    def loaded(tree: Any) -> None:
        load(tree)
        received.append(weakref.ref(tree["model"]["weight"]))

    monkeypatch.setattr(target, "load", loaded)
    engine: Any = Engine()
    for encoded in (source.snapshot({}), encode_tree(None)):
        send_tree(engine, *encoded)
        if encoded[1]:
            engine.broadcast_tensor(following.pair(7, 0), 0)
    engine.rank = 1
    channel: Any = SimpleNamespace(open=lambda: engine, source=0, check=lambda: None)
    followed: list[tuple[int, int]] = []
    following.follow(channel, target, lambda: None, lambda *said: followed.append(said))
    assert followed == [(7, 0)]
    assert received
    assert engine.is_empty


@pytest.mark.parametrize(("name", "flags"), [one for one in cases() if one.values[0] != "LBFGS"])
def test_every_optimizer_follows_to_the_bit(name: str, flags: dict[str, Any]) -> None:
    dtype = torch.float32 if name == "Muon" else torch.bfloat16
    if flags.get("fused"):
        dtype = torch.float32
    source, target = states(name, flags, dtype)

    def change(step: int) -> None:
        # What bodies of steps do: buffers, and rates by the number of the step.
        source.model.seen += 1
        for group in source.optimizer.param_groups:
            group["lr"] = group["lr"] * 0.5

    follow(source, target, 3, change)
    assert digest(source.replayed()) == digest(target.replayed())
    assert hand_over(source, target) <= 2, "the buffer, and a rate that is a tensor"
    assert_same(source.model.state_dict(), target.model.state_dict())
    assert_same(source.optimizer.state_dict(), target.optimizer.state_dict())


def test_what_is_changed_beside_steps_is_seen() -> None:
    source, target = states("Adam", {}, torch.float32)

    def change(step: int) -> None:
        if step == 4:
            with torch.no_grad():
                source.model.weight[0, 0] += 1

    follow(source, target, 3, change)
    assert digest(source.replayed()) != digest(target.replayed())


def test_a_gradient_of_a_parameter_that_is_not_trained_is_refused() -> None:
    """The body of a step may thaw a layer by the number of the step; a follower runs none."""
    source, target = states("Adam", {}, torch.float32)
    for state in (source, target):
        state.model.unused.requires_grad_(False)

    def change(step: int) -> None:
        source.model.unused.requires_grad_(step > 3)

    with pytest.raises(ConfigError, match="trains parameters that this worker does not: unused"):
        follow(source, target, 3, change)


def test_gradients_have_the_layout_of_their_weights() -> None:
    """A norm over a gradient depends on the order of its elements in memory."""
    norms: list[torch.Tensor] = []
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        net = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def apply(net: nn.Module = net, optimizer: optim.SGD = optimizer) -> None:
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), 0.1))
            optimizer.step()

        found.append(TrainingState(net, optimizer, apply=apply))
    source, target = found
    source.model(torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)).pow(2).sum().backward()
    stride = source.model.weight.grad.stride()
    reduced = source.reduced({})
    source.apply()
    strides: list[tuple[int, ...]] = []
    target.optimizer.register_step_pre_hook(lambda *_: strides.append(target.model.weight.grad.stride()))
    target.replay(decoded(reduced))
    assert strides == [stride]
    assert torch.equal(norms[0], norms[1])
    assert digest(source.replayed()) == digest(target.replayed())


@pytest.mark.parametrize("n", [1, 3, 1024 * 2, 1024 * 2 + 1, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64])
def test_a_digest_sees_each_bit(n: int, dtype: torch.dtype) -> None:
    # At an address of which nothing is known.
    tensor = torch.zeros(n + 1, dtype=dtype)[1:]
    before = digest({"one": tensor})
    assert 0 <= before < 1 << 62
    assert before == digest({"one": tensor.clone()})
    for at in {0, n // 2, n - 1}:
        data = tensor[at : at + 1].view(torch.uint8)
        data[-1] ^= 1
        assert digest({"one": tensor}) != before
        data[-1] ^= 1
    assert digest({"two": tensor}) != before
