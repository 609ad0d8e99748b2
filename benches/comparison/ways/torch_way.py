from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benches.comparison.teacher import BATCH, N_TEACHERS, teach


class Taught(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first = worker.id * BATCH
        while True:
            yield teach(range(first, first + BATCH))
            first += worker.num_workers * BATCH


@contextmanager
def batches() -> Iterator[Iterator[dict]]:
    yield iter(DataLoader(Taught(), batch_size=None, num_workers=N_TEACHERS, prefetch_factor=4))
