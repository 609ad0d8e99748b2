"""Run with the Python of an environment that has the wheel, and no torch: one sample from a supplier to a client.

python -I round_trip.py FOLDER [ARCHITECTURE ...]: sockets are put into the folder; the kernels must have been compiled
for these architectures, which may be none.
"""

import importlib.util
import sys
from pathlib import Path

import softs_fast as sf

assert importlib.util.find_spec("torch") is None, "this environment was meant to have no torch"
assert set(sf.__all__) <= set(dir(sf))

folder = Path(sys.argv[1])
endpoints = sf.EndpointConfig(f"ipc://{folder}/frontend.sock", f"ipc://{folder}/backend.sock")
with (
    sf.Broker(endpoints),
    sf.Supplier(
        generator_fn=lambda product_id: product_id.encode().ljust(64, b"."),
        product_ids=["teacher-[0-9]"],
        endpoint=endpoints.backend,
        medium_cls=sf.ShmMedium,
        slot_size=64,
    ),
    sf.Client(endpoint=endpoints.frontend, medium_cls=sf.ShmMedium, slot_size=64, num_slots=4) as client,
):
    client.hello()
    segment = Path("/dev/shm", client.medium.address)
    assert segment.exists(), segment
    slot = client.request_sample("teacher-7", timeout_ms=20_000)
    assert slot is not None
    sample = client.medium.read(slot)
    client.release_slot(slot)
assert bytes(sample) == b"teacher-7".ljust(64, b"."), sample
assert not segment.exists(), segment

import numpy as np  # noqa: E402

from softs_fast.kernels import build_info, reduce  # noqa: E402

total = np.zeros(100, np.float32)
reduce([np.ones(100, np.float32)] * 3, total)
assert (total == 3).all()
info = build_info()
assert info.available[-1] == "scalar"
assert list(info.cuda_architectures) == sys.argv[2:], info
assert "torch" not in sys.modules
print("sample arrived without torch")
