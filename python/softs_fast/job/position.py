"""Where a training is in its samples: what travels with the weights, so that the two cannot disagree."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .ledger import Ledger

__all__ = ["Position"]


class Position:
    """The ledger, the steps that the weights have, and the run that has made the last of them; a part of `TrainingState`.

    Args:
        ledger: Ledger of the job.
        seed: Seed of the job, of which the random numbers of each micro-batch follow.
    """

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self.seed = seed
        #: Steps that were applied to the weights.
        self.committed = 0
        #: Run, one start of a job with all its ranks; and the run before, if this one began with a checkpoint, else "".
        self.run, self.parent = secrets.token_hex(8), ""

    def resumed(self) -> None:
        """Note that the position was loaded from a checkpoint of an earlier run: a new run begins."""
        self.parent, self.run = self.run, secrets.token_hex(8)

    def applied(self) -> None:
        """Note that a step was applied."""
        self.committed += 1

    def seed_of(self, step: int, index: int) -> int:
        """Return the seed of the random numbers of a micro-batch of a step, from 0; 63 bits.

        Without a switch of products it is that of the number of its first sample.
        """
        number = step * self.ledger.global_batch_size + index * self.ledger.micro_batch_size
        text = f"{self.seed}:{number}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"committed": self.committed, "run": self.run, "parent": self.parent}

    def contract(self) -> dict[str, Any]:
        """Return what must be equal on all ranks, and in all runs that go on with each other's checkpoints."""
        switches = ", ".join(f"{product} after {step} steps" for step, product in self.ledger.switches)
        return {**asdict(self.ledger), "switches": switches, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the position of weights that were copied; the coordinator has compared the contract."""
        self.committed, self.run, self.parent = state["committed"], state["run"], state["parent"]
