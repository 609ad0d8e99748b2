"""The example of PPO with a journal, and a hook that writes what the weights are after each step of training."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import ppo_tiny
import softs_fast.dataflow as df


def number_of(tensors: Any) -> float:
    """Return a number that another bit of the tensors changes."""
    digest = hashlib.blake2b(digest_size=6)
    for one in tensors:
        digest.update(one.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return float(int.from_bytes(digest.digest()))


def make_flow(folder: str) -> df.Flow:
    """Return the flow, with an actor and a generator on two workers each.

    Args:
        folder: Folder for the journal and the weights.
    """

    def note(role: Any) -> None:
        states = [role.optimizer.state[one] for one in role.net.parameters()]
        tensors = [*role.net.parameters(), *(one for state in states for one in state.values())]
        rank = role.mesh.rank("dp") if hasattr(role, "mesh") else 0
        with Path(folder, f"{type(role).__name__}-{rank}").open("a") as file:
            file.write(f"{int(states[0]['step'])} {number_of(one.flatten() for one in tensors):.0f}\n")

    flow = ppo_tiny.make_flow(0, 0, n_workers=4)
    calls = [
        replace(one, post_hooks=(*one.post_hooks, df.hook(note))) if one.trains else one
        for one in flow.declaration.calls
    ]
    journal = df.Journal(f"{folder}/journal", 2, 9)
    return df.Flow(calls, source=ppo_tiny.prompts(0), group=ppo_tiny.GROUP, digests=True, journal=journal)


def weights_of(folder: Path) -> dict[tuple[str, int], set[str]]:
    """Return what the weights and optimizers of each rank were, by steps of its optimizer; one thing, if all is well."""
    found: dict[tuple[str, int], set[str]] = {}
    for name in ("Actor-0", "Actor-1", "Critic-0"):
        for line in (folder / name).read_text().splitlines():
            step, number = line.split()
            found.setdefault((name, int(step)), set()).add(number)
    return found
