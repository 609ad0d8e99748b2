"""Runs the program of docs/clusters.md on a Ray cluster of three nodes on this machine, then loses one of them."""

from __future__ import annotations

import os
import re
import sys
import time
from itertools import count
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import softs_fast as sf

DOCS = Path(__file__).parents[2] / "docs"
text = "".join((DOCS / name).read_text() for name in ("hosts.md", "clusters.md"))
programs = dict(re.findall(r"```python title=(\S+)\n(.*?)```", text, flags=re.DOTALL))
folder = Path(sys.argv[1])
(folder / "teachers.py").write_text(programs["teachers.py"])
(folder / "slow.py").write_text(
    "import time\n" + programs["teachers.py"].replace("x = np", "time.sleep(0.05); x = np", 1)
)
os.chdir(folder)
sys.path.insert(0, str(folder))

# The driver's node has no processor, so its loss is not tried.
cluster = Cluster()
nodes = [
    cluster.add_node(
        num_cpus=cpus,
        object_store_memory=80_000_000,
        include_dashboard=False,
    )
    for cpus in (0, 2, 2, 2)
]
os.environ["RAY_ADDRESS"] = cluster.address
sys.stdout.flush()
exec(compile(programs["on_ray.py"], "on_ray.py", "exec"), {})

exec(compile(programs["train_on_ray.py"], "train_on_ray.py", "exec"), {})

import slow  # type: ignore[import-not-found]  # noqa: E402
from teachers import config, make_supplier  # noqa: E402

elsewhere = folder.parent / "elsewhere"
elsewhere.mkdir()
(elsewhere / "only_here.py").write_text(programs["teachers.py"])
sys.path.insert(0, str(elsewhere))
import only_here  # type: ignore[import-not-found]  # noqa: E402

try:
    with sf.RayFleet(only_here.make_supplier):
        pass
except sf.ConfigError as error:
    print("refused:", error, flush=True)

try:
    with sf.RayFleet(make_supplier, hosts=4, n_workers=2, start_timeout_s=2.0):
        pass
except sf.FleetError as error:
    print("refused:", error, flush=True)

with (
    sf.RayFleet(slow.make_supplier, hosts=(1, 3)) as fleet,
    fleet.loader("digits", config, num_slots=64, batch_size=8, ordered=True) as loader,
):
    batches = iter(loader)
    for number in count():
        assert next(batches)["y"].tolist() == list(range(number * 8, number * 8 + 8)), number
        if number % 10 == 0 and len(states := fleet.states()) == 3:
            break
    print("serving more:", len(states), flush=True)
    while len(states) > 1:
        time.sleep(0.5)
        states = fleet.states()
    print("serving fewer:", len(states), flush=True)
    assert next(batches)["y"][0].item() == number * 8 + 8

with (
    sf.RayFleet(make_supplier, hosts=2, n_workers=2) as fleet,
    fleet.loader("digits", config, num_slots=64, batch_size=32, ordered=True) as loader,
):
    before = set(fleet.states())
    print("serving:", len(before), flush=True)
    batches = iter(loader)
    for number in count():
        batch = next(batches)
        assert batch["y"].tolist() == list(range(number * 32, number * 32 + 32)), number
        if number == 100:
            (table,) = [one for one in ray.util.placement_group_table().values() if one["state"] == "CREATED"]
            lost = table["bundles_to_node_id"][0]
            cluster.remove_node(next(node for node in nodes if node.node_id == lost), allow_graceful=False)
        # The host that was lost is started on the third node, with another process.
        if number % 500 == 0 and len(states := fleet.states()) == 4 and set(states) != before:
            break
    print("serving again:", len(states), flush=True)
    for _ in batches:
        pass
