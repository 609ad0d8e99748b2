"""A loader with a device: batches are whole in whatever stream reads them, also when the step before still runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import softs_fast as sf

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch needs a GPU; the stand-in is none"
)

CONFIG = sf.make_xy_config((100_000,), "float32", (), "int64")
B = 16


def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, torch.Tensor]:
    y = torch.tensor(sequences)
    return {"x": y.float().unsqueeze(1).expand(n, 100_000).contiguous(), "y": y}


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    with (
        sf.Broker(sf.EndpointConfig(frontend, backend)),
        sf.Supplier(batch_generator_fn=generate, product_ids=["m"], endpoint=backend, batch_config=CONFIG),
    ):
        yield frontend


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"zero_copy": True}, {"collate_fn": torch.utils.data.default_collate}],
    ids=["one thread", "two threads", "zero copy", "collate_fn"],
)
def test_batches_are_whole_while_the_device_is_late(endpoint: str, options: dict[str, object]) -> None:
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    with sf.SoftDataLoader(
        "m", endpoint, CONFIG, num_slots=4 * B, batch_size=B, ordered=True, device="cuda", **options
    ) as loader:
        batches = iter(loader)
        sums = []
        for step in range(24):
            with torch.cuda.stream(streams[step // 4 % 2]):
                batch = next(batches)
                assert {tensor.device.type for tensor in batch.values()} == {"cuda"}
                # The host is steps ahead of the device, which reads batches that the host has dropped long ago.
                torch.cuda._sleep(20_000_000)
                sums.append((batch["x"].double().sum(1), batch["y"].clone()))
                del batch
        torch.cuda.synchronize()
    for step, (total, y) in enumerate(sums):
        expected = torch.arange(step * B, (step + 1) * B)
        assert torch.equal(y.cpu(), expected)
        assert torch.equal(total.cpu(), 100_000.0 * expected)
