"""The Ray cluster of this process, and what an actor needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError

__all__ = ["connected_ray", "remote_class"]


def connected_ray() -> Any:
    """Return the module of Ray, connected to a cluster: by `ray.init()` if the program has not done so.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"this needs Ray: {error}; pip install 'softs-fast[ray]'") from error
    if not ray.is_initialized():
        ray.init()
    return ray


def remote_class(ray: Any, kind: type, resources: Mapping[str, float]) -> Any:
    """Return a class of actors, which Ray starts again elsewhere if they are lost, and with them the calls under way.

    Args:
        ray: Module of Ray.
        kind: Class that the actors have.
        resources: Resources of each actor, such as ``{"CPU": 8, "GPU": 8}``.

    Raises:
        ValueError: Ray refuses the resources.
    """
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    named = {option: resources.get(name, 0) for name, option in own.items()}
    others = {name: number for name, number in resources.items() if name not in own}
    return ray.remote(max_restarts=-1, max_task_retries=-1, resources=others, **named)(kind)
