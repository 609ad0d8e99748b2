"""Switches the model in all ranks of a DDP training at the same step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigError, PeerLost, SoftsError
from .student import StudentClient

__all__ = ["switch_model"]


def switch_model(
    client: StudentClient,
    model_id: str,
    model_cfg: Mapping[str, Any] | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    timeout_s: float = 30.0,
) -> int:
    """Set a model in all ranks of a group; all of them call this at the same step.

    The leader sets it, the other ranks wait until they follow it. When the call returns, every rank of the group gets
    samples of the new model only. Without `torch.distributed` it is the same as `client.set_model`.

        client = StudentClient(dist.get_rank(), 16, config)
        client.hello()
        for layer in range(12):
            switch_model(client, f"layer_{layer}")
            train(client)

    Args:
        client: Client of this process. The one with student_rank 0 sets the model; the others follow, for which
            `start_sub_listener` is called if necessary.
        model_id: Name of the model, as for `StudentClient.set_model`; the same on every rank.
        model_cfg: Settings of the model, as for `StudentClient.set_model`; the leader's are used.
        group: Process group of the ranks; default: all. It must contain the leader.
        timeout_s: How long a rank waits for the announcement, seconds.

    Returns:
        The new generation.

    Raises:
        ConfigError: the arguments cannot be sent, or the group has no leader or two.
        BrokerTimeout: no broker answered the leader, or this rank did not receive the model in time.
        PeerLost: this rank succeeded, but another one failed; the error of that rank names the cause. Every rank
            raises if one does.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return client.set_model(model_id, model_cfg)
    is_leader = client.student_rank == 0
    # No rank is switched while it is still in the step before.
    n_leaders = sum(leads for (leads,) in _gather([is_leader], group))
    if n_leaders != 1:
        raise ConfigError(f"the group has {n_leaders} students of rank 0, need one, which sets the model")
    generation, failure = 0, None
    try:
        if is_leader:
            generation = client.set_model(model_id, model_cfg)
        else:
            client.start_sub_listener()
    except SoftsError as error:
        failure = error
    # Only the leader has a generation here.
    said = _gather([generation, failure is not None], group)
    if not any(failed for _, failed in said):
        generation = max(generation for generation, _ in said)
        try:
            client.wait_for_generation(generation, timeout_s)
        except SoftsError as error:
            failure = error
        said = _gather([generation, failure is not None], group)
    if failure is not None:
        raise failure
    failed_ranks = [f"rank {rank}" for rank, (_, failed) in enumerate(said) if failed]
    if failed_ranks:
        raise PeerLost(
            f"the switch to model {model_id!r} failed in {', '.join(failed_ranks)}; the errors of these ranks name the "
            f"cause; this rank is at generation {client.generation}"
        )
    return generation


def _gather(mine: list[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    """Return one number per rank, by rank; it is also the barrier. Numbers, because objects would be pickled."""
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    sent = torch.tensor(mine, dtype=torch.int64, device=device)
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(received, sent, group)
    return [tensor.tolist() for tensor in received]
