"""Models of which each process has a shard: one decision, one step, and each shard takes over its like."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_ranks import gloo

from softs_fast.averaging import Refused, Rules, Schedule, SelectiveAveraging, meet_in_group
from softs_fast.averaging.board import Board
from softs_fast.averaging.shards import Shards, refusal_of
from softs_fast.errors import ConfigError


def trains_sharded(say: Callable[[Any], None], rank: int, size: int, folder: str) -> dict[str, Any]:
    """Ranks 0 and 1 have one model, ranks 2 and 3 a better one; both replicas meet at a place.

    Then they meet in a group, and the first replica claims to be better, but one of its shards is not finite.
    """
    with gloo(rank, size, folder):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        replica = mesh["replica"].get_local_rank()
        said: dict[str, Any] = {}

        def train(meet: str | Board, *, poison: bool = False, **named: Any) -> SelectiveAveraging:
            torch.manual_seed(replica)
            model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))
            fully_shard(model, mesh=mesh["shard"])
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
            engine = SelectiveAveraging(
                model,
                optimizer,
                Rules(every=2, strategy="best_only"),
                meet=meet,
                schedule=Schedule(1),
                **named,
            )
            events = []
            for step in itertools.count():
                time.sleep(0.002 * rank)  # shards of one model ask and are asked at different times
                if not poison:
                    optimizer.zero_grad()
                    model(torch.ones(4, 3)).sum().backward()
                    optimizer.step()
                elif step == 0 and rank == 1:
                    with torch.no_grad():
                        model[0].weight.to_local().fill_(float("nan"))
                # Only the metric of the first shard counts, and weights of all of them.
                claimed = 0.9 if poison and not any(events) else 0.1
                events.append(engine.step([claimed, 0.9, 0.5, 0.0][rank]))
                # What is fetched comes by a thread, after any number of steps.
                n_replaced = torch.tensor(sum(map(bool, events)))
                dist.all_reduce(n_replaced)
                if step >= 11 and n_replaced > 0:
                    break
            engine.shutdown()
            said["steps"] = [event.step for event in events if event]
            said["donors"] = [[(one.rank, one.step) for one in event.donations] for event in events if event]
            said["weights"] = [weight.full_tensor().tolist() for weight in model.parameters()]
            return engine

        engine = train(f"{folder}/place")
        at_place = dict(said)
        try:
            train(f"{folder}/wrong", rank=rank)
        except ConfigError as error:
            wrong = str(error)
        train(meet_in_group(mesh["replica"].get_group()), poison=True)
        return {"rank": engine.rank, "place": at_place, "group": said, "wrong": wrong}


def test_shards_of_a_replica_are_replaced_together(tmp_path: Path) -> None:
    told = ranks.run(trains_sharded, 4, str(tmp_path))
    assert [one["rank"] for one in told] == [0, 0, 2, 2]
    for meet in ("place", "group"):
        replaced, same, *donors = [one[meet] for one in told]
        assert replaced["steps"], meet
        assert (replaced["steps"], replaced["donors"]) == (same["steps"], same["donors"])
        assert [one["steps"] for one in donors] == [[], []]
        assert replaced["weights"] == same["weights"] == donors[0]["weights"] == donors[1]["weights"]
    assert told[0]["place"]["donors"][0][0][0] == 2
    assert told[0]["group"]["donors"][0][0][0] == 1, "its number in the group"
    assert "the shards of one model have ranks [0, 1]" in told[0]["wrong"]


def test_what_shards_have_fetched_is_of_one_step() -> None:
    ended = Refused(3, "it has ended")
    assert refusal_of([((1, 7), (2, 9)), ((1, 7), (2, 9))]) is None
    assert refusal_of([((1, 7),), None]) is None
    assert refusal_of([None, ended]) == ended
    assert refusal_of([((1, 7), (2, 9)), ((1, 7), (2, 8))]) == Refused(2, "its shards are of different steps")


def test_a_process_with_a_whole_model_is_alone() -> None:
    shards = Shards(torch.nn.Linear(1, 1))
    assert (shards.is_alone, shards.is_first, shards.place, shards.first) == (True, True, "", None)
    assert shards.gather("said") == ["said"]
