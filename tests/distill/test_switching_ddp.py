"""Two ranks of a DDP training switch at the same step, and each has a stream of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import samples
import torch.distributed as dist
from school import School

import softs_fast
from softs_fast import ConfigError, DistillDataLoader, DistillIterableDataset, PeerLost, StudentClient
from softs_fast.distill import switch_model


def train(say: Callable[[Any], None], rank: int, n_ranks: int, folder: str) -> tuple[list[Any], str]:
    """Switch and take batches on one rank: the models, ranks and sequence numbers of the batches, and the text of the error."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_ranks)
    frontend, _, control, control_pub = samples.endpoints(Path(folder))
    seen = []
    with StudentClient(rank, 8, samples.CONFIG, frontend, control, control_pub, ordered=True) as client:
        client.hello()
        data = DistillIterableDataset(
            rank, client.generation_value, 8, samples.CONFIG, frontend, ordered=True
        )
        batches = iter(DistillDataLoader(data, batch_size=2))
        for model in range(1, 21):
            assert switch_model(client, str(model)) == model
            sample = samples.take(client)
            assert samples.check(sample.tensors(), rank) == model
            client.release_slot(sample.slot_id)
            for _ in range(2):
                batch = next(batches)
                seen.append([batch["model"].tolist(), batch["rank"].tolist(), batch["sequence"].tolist()])
        problem = ""
        try:
            switch_model(client, "x" * 1000)
        except (ConfigError, PeerLost) as error:
            problem = f"{type(error).__name__}: {error}"
        # It goes on as if nothing had been.
        assert switch_model(client, "21") == 21
        data.close()
    dist.destroy_process_group()
    return seen, problem


def test_all_ranks_switch_at_the_same_step(school: School, short_path: Path) -> None:
    school.broker()
    for _ in range(2):
        school.worker()
    results = ranks.run(train, 2, str(short_path))
    for rank, (seen, _) in enumerate(results):
        # Ranks take turns with the numbers.
        expected = [
            [[model] * 2, [rank] * 2, [4 * i + rank, 4 * i + 2 + rank]]
            for model in range(1, 21)
            for i in range(2)
        ]
        assert seen == expected
    problems = [problem for _, problem in results]
    assert problems[0].startswith("ConfigError: model_id must have")
    assert problems[1].startswith("PeerLost: the switch to model ")
    assert "failed in rank 0; the errors of these ranks name the cause" in problems[1]


def test_without_ddp_it_is_set_model(school: School) -> None:
    school.broker()
    assert switch_model(school.student(), "1") == 1
    follower = school.student(1)
    with pytest.raises(softs_fast.ConfigError, match="only rank 0"):
        switch_model(follower, "2")
    with pytest.raises(softs_fast.ConfigError, match="only rank 0"):
        follower.stop_workers()
