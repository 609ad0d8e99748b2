from collections.abc import Iterator
from contextlib import contextmanager

import softs_fast as sf
from benches.comparison.teacher import BATCH, N_TEACHERS, teach

config = sf.BatchConfig(
    [
        sf.TensorSpec("x", (3, 64, 64), "float32"),
        sf.TensorSpec("y", (10,), "float32"),
        sf.TensorSpec("number", (), "int64"),
        sf.TensorSpec("pid", (), "int64"),
    ]
)


def make_supplier():
    def generate(product_id, n, sequences):
        return teach(sequences)

    return sf.Supplier(batch_generator_fn=generate, product_ids=["1"], batch_config=config)


@contextmanager
def batches() -> Iterator[Iterator[dict]]:
    with (
        sf.Fleet(make_supplier, n_workers=N_TEACHERS) as fleet,
        fleet.loader("1", config, num_slots=256, batch_size=BATCH, ordered=True) as loader,
    ):
        yield iter(loader)
