"""The objects of one worker that shares its process with the others: checkpoints without process groups."""

from __future__ import annotations

from pathlib import Path

from ...errors import FlowError
from .. import checkpoints
from ..declare.roles import Placement
from ..objects import Objects

__all__ = ["LockstepObjects"]


class LockstepObjects(Objects):
    """Objects of roles of which the ranks are replicas: the first one writes checkpoints, and each reads them.

    That is what torch.distributed.checkpoint does with tensors that several ranks have.
    """

    def load(self, role: Placement, folder: Path) -> int:
        """Load what the hook `save` has written last; returns the number of its step, from 1.

        Raises:
            ConfigError: there is no checkpoint.
        """
        return checkpoints.load(role.name, self[role], folder)

    def _save(self, role: Placement, folder: Path, step: int) -> None:
        error: Exception | None = None
        if self._worker == role.on[0]:
            try:
                checkpoints.save(role.name, self[role], folder, step)
            except Exception as caught:
                error = caught
        is_well = self.agree(role, error is None)
        if error is not None:
            raise error
        if not is_well:
            raise FlowError(f"{folder} is not written: worker {role.on[0]} could not write it")
