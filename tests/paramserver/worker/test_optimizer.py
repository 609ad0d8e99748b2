"""RemoteOptimizer against a scripted server: gradients, local steps, schedulers, scalers, stale pushes, the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from side_by_side import in_threads

pytest.importorskip("urllib3", reason="needs the extra paramworker")
import torch
from fake_server import OPTIONS, FakeServer, linear
from torch import Tensor, nn

from softs_fast.errors import ConfigError
from softs_fast.paramserver.wire.codecs import BLOCK
from softs_fast.paramserver.wire.header import Codec, Kind
from softs_fast.paramserver.wire.messages import Heartbeat, RunConfig, decode
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.options import WorkerOptions
from softs_fast.records import replace

CONFIG = RunConfig(rounds=5, batch_size=8, push_codec="f32", compression=False)
X = torch.linspace(-1, 1, 24).reshape(8, 3)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]])


def closure_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(X), Y)
        loss.backward()
        return loss.detach()

    return closure


def weights(module: nn.Module) -> Tensor:
    return torch.cat([one.detach().reshape(-1) for one in module.parameters()])


def alone(steps: int, lr: float = 0.1) -> Tensor:
    """The weights of one process that trains by itself."""
    module = linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    closure = closure_of(module, optimizer)
    for _ in range(steps):
        optimizer.step(closure)  # type: ignore[arg-type]
    return weights(module)


def other_weights() -> nn.Module:
    module = linear()
    with torch.no_grad():
        for one in module.parameters():
            one.fill_(9.0)
    return module


def last_of(server: FakeServer, pull: str) -> Tensor:
    last = server.contents.parameters
    return last if pull == "f32" else last.bfloat16().float()


@pytest.mark.parametrize("pull", ["f32", "bf16"])
def test_steps_are_those_of_one_process(pull: str) -> None:
    config = RunConfig(rounds=5, batch_size=8, push_codec="f32", compression=False, pull_codec=pull)  # type: ignore[arg-type]
    module = other_weights()
    with FakeServer(linear(), config) as server:
        with RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
            first = weights(module)
            assert torch.allclose(first, weights(linear()), rtol=0 if pull == "f32" else 1e-2)
            while not optimizer.is_over:
                optimizer.step(closure_of(module, optimizer))
            assert optimizer.counts.counted == 5
            assert optimizer.summary is not None
            assert optimizer.summary.version == 5
            # No gradient was computed for nothing, and the last step is here.
            assert torch.equal(weights(module), last_of(server, pull))
            with pytest.raises(ConfigError, match="the run is over at version 5"):
                optimizer.step(closure_of(module, optimizer))
        expected = alone(5)
        assert torch.allclose(server.contents.parameters, expected, atol=1e-6 if pull == "f32" else 1e-2)
        assert all(header.samples == 8 and header.loss > 0 for header in server.frames)
        assert server.left == ["w0"]


def test_the_learning_rate_of_a_group_is_a_factor() -> None:
    module = linear()
    with (
        FakeServer(linear(), CONFIG, lr=0.1) as server,
        RemoteOptimizer(module, server.invite, OPTIONS) as optimizer,
    ):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
        optimizer.step(closure_of(module, optimizer))
        after_one = server.contents.parameters.clone()
        assert torch.allclose(after_one, alone(1))
        scheduler.step()
        optimizer.step(closure_of(module, optimizer))
        assert torch.equal(server.contents.parameters, after_one)


def test_local_steps_push_what_changed() -> None:
    config = RunConfig(rounds=2, batch_size=8, local_steps=3, push_codec="f32", compression=False)
    module = other_weights()
    with (
        FakeServer(linear(), config, lr=1.0) as server,
        RemoteOptimizer(
            module, server.invite, OPTIONS, local_optimizer=lambda given: torch.optim.SGD(given, lr=0.1)
        ) as optimizer,
    ):
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        for _ in range(6):
            optimizer.step(closure_of(module, optimizer))
            scheduler.step()
        assert optimizer.is_over
        assert [header.kind for header in server.frames] == [Kind.DIFFERENCE] * 2
        assert [header.samples for header in server.frames] == [24, 24]
        assert torch.allclose(server.contents.parameters, alone(6), atol=1e-6)
        assert set(optimizer.state_dict()) == {"state", "param_groups"}
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_local_steps_need_an_optimizer() -> None:
    config = RunConfig(rounds=2, batch_size=8, local_steps=3)
    with (
        FakeServer(linear(), config) as server,
        pytest.raises(ConfigError, match="wants 3 local steps; pass local_optimizer="),
    ):
        RemoteOptimizer(linear(), server.invite, OPTIONS)


def test_a_stale_push_is_computed_again_with_a_closure_and_dropped_without() -> None:
    module = linear()
    with FakeServer(linear(), CONFIG) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        calls = 0

        def closure() -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 1:
                # Another worker closes the round meanwhile.
                with server.changed:
                    server.version += 1
            return closure_of(module, optimizer)()

        optimizer.step(closure)
        assert (calls, optimizer.counts.stale, optimizer.counts.counted) == (2, 1, 1)
        assert torch.allclose(server.contents.parameters, alone(1))
        closure_of(module, optimizer)()
        with server.changed:
            server.version += 1
        assert optimizer.step() is None
        assert (optimizer.counts.stale, optimizer.counts.counted) == (2, 1)
        assert optimizer.version == (1, server.version)


def test_absent_and_sparse_gradients() -> None:
    def model() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))

    module = model()
    with FakeServer(model(), CONFIG) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        before = server.contents.parameters.clone()
        module[0](torch.tensor([1])).sum().backward()  # type: ignore[index]
        optimizer.step()
        changed = (server.contents.parameters - before).nonzero().reshape(-1).tolist()
        assert changed == [2, 3]


def two_heads() -> nn.Module:
    torch.manual_seed(2)
    return nn.ModuleDict({"used": nn.Linear(3, 1, bias=False), "idle": nn.Linear(3, 1, bias=False)})


@pytest.mark.parametrize("local_steps", [0, 2])
def test_a_push_says_which_parameters_have_no_gradient(local_steps: int) -> None:
    config = RunConfig(rounds=3, batch_size=8, push_codec="f32", compression=False, local_steps=local_steps)
    module = two_heads()
    given: list[tuple[bool, ...] | None] = []
    with (
        FakeServer(two_heads(), config, lr=1.0) as server,
        RemoteOptimizer(module, server.invite, OPTIONS, local_optimizer=torch.optim.SGD) as optimizer,
    ):
        for number in range(3 * max(1, local_steps)):
            optimizer.zero_grad()
            # The idle head is used in one step alone: that of the first push, or the first local one of the second push.
            heads = ["used"] if number != local_steps else ["used", "idle"]
            sum(module[head](X).mean() for head in heads).backward()  # type: ignore[union-attr]
            optimizer.step()
        given = [contents.present for contents in server.pushes]
    first = None if local_steps == 0 else (True, False)
    assert given == [first, (True, False) if local_steps == 0 else None, (True, False)]


def test_parameters_that_are_replaced_are_refused_by_name() -> None:
    """Their gradients would be in tensors that are never sent, and zeros would be sent."""
    module = linear()
    with FakeServer(linear(), CONFIG) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        # Another dtype is none of these: the tensors are the same, and travel as float32.
        module.bfloat16()
        nn.functional.mse_loss(module(X.bfloat16()), Y.bfloat16()).backward()
        optimizer.step()
        assert optimizer.counts.counted == 1
        assert torch.equal(weights(module), server.contents.parameters.bfloat16())
        module.load_state_dict(linear().state_dict(), assign=True)
        nn.functional.mse_loss(module(X), Y).backward()
        with pytest.raises(ConfigError, match='"weight" was replaced after this optimizer was made'):
            optimizer.step()
        assert len(server.frames) == 1


def test_a_scaler_and_clipping_work() -> None:
    module = linear()
    with FakeServer(linear(), CONFIG) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for scale in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(X), Y) * scale
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 1e9)
            scaler.step(optimizer)
            scaler.update()
        # The infinite one was left out by the scaler.
        assert optimizer.counts.counted == 2
        assert torch.allclose(server.contents.parameters, alone(2), atol=1e-6)


@pytest.mark.parametrize("codec", ["bf16", "int8", "top_k"])
def test_codecs_of_the_server_train_with_error_feedback(codec: str) -> None:
    config = RunConfig(rounds=60, batch_size=8, push_codec=codec, top_k_fraction=0.3, compression=True)  # type: ignore[arg-type]
    module = linear()
    with FakeServer(linear(), config) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        while not optimizer.is_over:
            optimizer.step(closure_of(module, optimizer))
        assert {header.codec for header in server.frames} == {Codec[codec.upper()]}
        assert all(header.planes for header in server.frames)
        assert torch.allclose(server.contents.parameters, alone(60), atol=0.05)
    assert BLOCK == 256


def test_a_worker_has_a_codec_and_parts_of_its_own() -> None:
    config = RunConfig(rounds=4, batch_size=8, push_codec="bf16", compression=False)
    own = WorkerOptions("test", 20.0, push_codec="top_k", top_k_fraction=0.25, max_part_bytes=4 << 10)
    with FakeServer(linear(), config, world_size=2, need=2) as server:

        def work(options: WorkerOptions) -> None:
            module = linear()
            with RemoteOptimizer(module, server.invite, options) as optimizer:
                while not optimizer.is_over:
                    optimizer.step(closure_of(module, optimizer))

        in_threads(work, (OPTIONS, own))
        assert server.version == 4
        assert {header.codec for header in server.frames} == {Codec.BF16, Codec.TOP_K}
        # One of four elements: an index and a value.
        assert {header.decoded_bytes for header in server.frames} == {8}


def test_parts_of_a_worker_are_no_longer_than_it_wants() -> None:
    module = nn.Linear(400, 300)
    config = RunConfig(rounds=1, batch_size=8, push_codec="f32", compression=False)
    options = WorkerOptions("test", 20.0, max_part_bytes=100_000)
    with FakeServer(module, config) as server, RemoteOptimizer(module, server.invite, options) as optimizer:
        module(torch.ones(1, 400)).sum().backward()
        optimizer.step()
        assert len(server.parts) == 5
        assert max(server.parts) == 100_000


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"push_codec": "gzip"}, "push_codec of a worker is 'gzip'; expected f32, bf16, int8, top_k"),
        ({"top_k_fraction": 0.0}, "more than 0"),
        ({"max_part_bytes": 1}, "expected 4096 to 16777216"),
        ({"rejoin_timeout_s": 0.0}, "rejoin_timeout_s of a worker is 0.0; expected more than 0"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        WorkerOptions(**change)


def test_a_server_that_starts_again_may_have_another_codec() -> None:
    config = RunConfig(rounds=6, batch_size=8, push_codec="top_k", top_k_fraction=0.25, compression=False)
    module = linear()
    with (
        FakeServer(module, config, lr=0.1) as server,
        RemoteOptimizer(module, server.invite, OPTIONS) as optimizer,
    ):
        optimizer.step(closure_of(module, optimizer))
        feedback = optimizer.feedback
        assert feedback.residual is not None
        left = feedback.residual.clone()
        assert left.norm() > 0
        server.config = replace(config, push_codec="f32", max_wait_s=5.0)
        server.restart()
        seen: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(module(X), Y)
            loss.backward()
            seen.append(
                torch.cat([one.grad.reshape(-1) for one in module.parameters() if one.grad is not None])
            )
            return loss.detach()

        for _ in range(2):
            before = weights(module)
            optimizer.step(closure)
        # The first push of the new codec takes along what the old one left out; the second has only its own.
        assert [header.codec for header in server.frames] == [Codec.TOP_K, Codec.F32, Codec.F32]
        assert feedback.residual is None
        assert torch.allclose(weights(module), before - 0.1 * seen[-1], atol=1e-6)


def test_a_stale_push_leaves_the_residual_as_it_was() -> None:
    config = RunConfig(rounds=9, batch_size=8, push_codec="top_k", top_k_fraction=0.25, compression=False)
    module = linear()
    with FakeServer(module, config) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        optimizer.step(closure_of(module, optimizer))
        feedback = optimizer.feedback
        assert feedback.residual is not None
        left = feedback.residual.clone()
        assert left.norm() > 0
        server.version += 1
        closure_of(module, optimizer)()
        optimizer.step()
        assert optimizer.counts.stale == 1
        assert torch.equal(feedback.residual, left)


def test_buffers_travel_and_come_with_the_weights() -> None:
    def model() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))

    module = model()
    with FakeServer(model(), CONFIG) as server, RemoteOptimizer(module, server.invite, OPTIONS) as optimizer:
        nn.functional.mse_loss(module(X + 5), Y).backward()
        mean = module[0].running_mean.clone()  # type: ignore[index]
        optimizer.step()
        assert server.contents.floats is not None
        assert server.contents.integers is not None
        assert torch.equal(server.contents.floats[:3], mean)
        assert server.contents.integers.tolist() == [1]
        assert module[0].num_batches_tracked == 1  # type: ignore[index]


@pytest.mark.filterwarnings("ignore::FutureWarning:lightning", "ignore:.*treespec:FutureWarning")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
# Where SLURM is installed.
@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_lightning_trains_with_it() -> None:
    lightning = pytest.importorskip("lightning")

    class Student(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, invite: object) -> None:
            super().__init__()
            self.layer = linear()
            self.invite = invite

        def training_step(self, batch: Any) -> Tensor:
            return nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            self.remote = RemoteOptimizer(self.layer, self.invite, OPTIONS)  # type: ignore[arg-type]
            return self.remote

        def on_train_end(self) -> None:
            self.remote.close()

    config = RunConfig(rounds=4, batch_size=8, push_codec="f32", compression=False)
    loader = torch.utils.data.DataLoader([(X, Y)] * 4, batch_size=None)
    with FakeServer(linear(), config) as server:
        student = Student(server.invite)
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(student, loader)
        assert torch.allclose(server.contents.parameters, alone(4), atol=1e-6)


def test_heartbeats_renew_the_lease_and_tell_progress() -> None:
    config = RunConfig(rounds=5, batch_size=8, lost_after_s=0.15)
    told: list[int | None] = []

    def note(method: str, path: str, body: bytes) -> None:
        if path == "/v1/heartbeat":
            told.append(decode(Heartbeat, body).progress)

    with (
        FakeServer(linear(), config) as server,
        RemoteOptimizer(linear(), server.invite, OPTIONS) as optimizer,
    ):
        server.before_body = note  # type: ignore[assignment]
        server.wait_for(lambda: len(told) >= 3)
        n = told[-1]
        # A worker that computes or hangs says the same count; one that trains says another one.
        assert n is not None
        optimizer.step()
        server.wait_for(lambda: told[-1] is not None and told[-1] > n)
