import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

import softs
from torch.utils.data import DataLoader

from benches.comparison.teacher import BATCH, N_TEACHERS, teach

config = softs.BatchConfig(
    [
        softs.TensorSpec("x", (3, 64, 64), "float32"),
        softs.TensorSpec("y", (10,), "float32"),
        softs.TensorSpec("number", (1,), "int64"),
        softs.TensorSpec("pid", (1,), "int64"),
    ]
)


def serve(first: int, backend: str) -> None:
    number = first - N_TEACHERS

    def generate(product_id: str) -> bytes:
        nonlocal number
        number += N_TEACHERS
        sample = {name: tensor[0] for name, tensor in teach([number]).items()}
        return config.encode(
            x=sample["x"], y=sample["y"], number=sample["number"][None], pid=sample["pid"][None]
        )

    softs.Supplier(
        generator_fn=generate,
        product_ids=["1"],
        endpoint=backend,
        medium_cls=softs.ShmMedium,
        slot_size=config.nbytes(),
    ).start()
    time.sleep(1e6)


@contextmanager
def batches() -> Iterator[Iterator[dict]]:
    endpoints = softs.EndpointConfig()
    broker = softs.Broker(endpoints=endpoints)
    broker.start()
    context = multiprocessing.get_context("spawn")
    teachers = [
        context.Process(target=serve, args=(i, endpoints.backend), daemon=True) for i in range(N_TEACHERS)
    ]
    for teacher in teachers:
        teacher.start()
    dataset = softs.SoftIterableDataset(
        model_id="1",
        endpoint=endpoints.frontend,
        batch_config=config,
        medium_cls=softs.ShmMedium,
        num_slots=16,
    )
    yield iter(DataLoader(dataset, batch_size=BATCH, num_workers=0))
    broker.stop()
