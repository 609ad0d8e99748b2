from collections.abc import Iterator
from contextlib import contextmanager

import ray

from benches.comparison.teacher import BATCH, N_TEACHERS, teach


def label(rows: dict) -> dict:
    return {name: tensor.numpy() for name, tensor in teach(rows["id"].tolist()).items()}


@contextmanager
def batches() -> Iterator[Iterator[dict]]:
    ray.init(num_cpus=N_TEACHERS, include_dashboard=False)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    data = ray.data.range(1_000_000, override_num_blocks=1_000).map_batches(label, batch_size=BATCH)
    yield iter(data.iter_torch_batches(batch_size=BATCH))
    ray.shutdown()
