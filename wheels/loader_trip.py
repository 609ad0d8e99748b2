"""Run with the Python of an environment that has the wheel, and torch: batches from a fleet of one supplier."""

import torch

import softs_fast as sf

SAMPLE = sf.make_xy_config(x_shape=(16,), x_dtype="float32", y_shape=(1,), y_dtype="int64")


def make_supplier() -> sf.Supplier:
    def generate(product_id: str, n: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((n, 16), 7.0), "y": torch.full((n, 1), 3)}

    return sf.Supplier(batch_generator_fn=generate, product_ids=["ones"], batch_config=SAMPLE)


if __name__ == "__main__":
    with sf.Fleet(make_supplier, n_workers=1) as fleet:
        batches = list(fleet.loader("ones", SAMPLE, batch_size=4, steps_per_epoch=3))
    assert len(batches) == 3
    assert all(batch["x"].shape == (4, 16) and (batch["x"] == 7).all() for batch in batches)
    assert all((batch["y"] == 3).all() for batch in batches)
    print("batches arrived")
