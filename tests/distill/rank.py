"""One rank of a DDP training: ``python rank.py FOLDER RANK N``; prints the sequence numbers and models that it has seen."""

import json
import sys
from pathlib import Path

import samples
import torch.distributed as dist

from softs_fast import ConfigError, DistillDataLoader, DistillIterableDataset, PeerLost, StudentClient
from softs_fast.distill import switch_model


def main() -> None:
    folder, rank, n_ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
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
    print(json.dumps({"seen": seen, "problem": problem}))


if __name__ == "__main__":
    main()
