"""A process that trains with the programs of docs/coordination.md."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from softs_fast.coordination.node import TrainingState, WorkerNode

PAGE = Path(__file__).parents[3] / "docs" / "coordination.md"
N_PARTS = 4


def programs(title: str) -> dict[str, Any]:
    """Return what the programs of a section define."""
    text = PAGE.read_text().split(f"\n### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]
    found: dict[str, Any] = {}
    for program in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(program, str(PAGE), "exec"), found)
    return found


def rows(step: int) -> torch.Tensor:
    """Return the data of a step."""
    return torch.arange(32, dtype=torch.float32).view(8, 4).roll(step) / 32


def new_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return model and optimizer at the beginning."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)


def main() -> None:
    """Train as the options say, and report."""
    options = json.loads(sys.argv[1])
    model, optimizer = new_model()

    def parts() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(path: str) -> None:
        state = parts()
        dcp.load(state, checkpoint_id=path, no_dist=True)
        model.load_state_dict(state["model"])

    sharded = programs("Checkpoints of which each worker writes a part")
    write = dcp.save

    def save(state: dict[str, Any], *, checkpoint_id: str) -> None:
        write(state, checkpoint_id=checkpoint_id)
        if options.get("dies_at") and checkpoint_id.endswith(f"-{options['dies_at']}"):
            os.kill(os.getpid(), signal.SIGKILL)

    dcp.save = save
    state = TrainingState(model, optimizer)
    seat = options["seat"]
    with WorkerNode(
        options["address"], state, seat=seat, engine=sharded["join"], load=load, join_s=60.0
    ) as node:
        report("joined", node, model)
        n_steps = options["n_steps"]
        while node.committed < n_steps and not node.is_leaving:
            programs("Gradients of several batches")["accumulate"](
                node, model, lambda step, rank, size: rows(step).chunk(N_PARTS), node.committed + 10
            )
            if options.get("folder"):
                sharded["save"](node, parts(), options["folder"])
    report("end", node, model)


def report(event: str, node: WorkerNode, model: torch.nn.Module) -> None:
    """Print an event."""
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    print(json.dumps({"event": event, "committed": node.committed, "weights": weights.tolist()}), flush=True)


if __name__ == "__main__":
    main()
