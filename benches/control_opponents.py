"""Actor calls of other software, for `benches.dataflow_control`: one line of JSON with milliseconds of each round.

It imports nothing of softs_fast: it runs in an environment that has Ray or Monarch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable

PAYLOAD = bytes(64)
WARM_UP = 20


def ray_calls(n: int) -> Callable[[], object]:
    """Return a call of n actors of Ray, one process each; as many CPUs are announced, so that all are placed."""
    import ray

    ray.init(num_cpus=n, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    @ray.remote
    class Echo:
        def echo(self, payload: bytes) -> bytes:
            return payload

    actors = [Echo.remote() for _ in range(n)]
    return lambda: ray.get([actor.echo.remote(PAYLOAD) for actor in actors])


def monarch_calls(n: int) -> Callable[[], object]:
    """Return a call of n actors of Monarch, one process each."""
    from monarch.actor import Actor, endpoint, this_host

    class Echo(Actor):
        @endpoint
        async def echo(self, payload: bytes) -> bytes:
            return payload

    actors = this_host().spawn_procs({"workers": n}).spawn("echo", Echo)
    return lambda: actors.echo.call(PAYLOAD).get()


CALLS = {"ray": ray_calls, "monarch": monarch_calls}


def main() -> None:
    """Measure one opponent: name, actors, rounds."""
    name, n, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if importlib.util.find_spec(name) is None:
        print(json.dumps({"absent": f"not installed in {sys.executable}"}))
        return
    call = CALLS[name](n)
    found = []
    for turn in range(WARM_UP + rounds):
        begun = time.perf_counter()
        call()
        if turn >= WARM_UP:
            found.append((time.perf_counter() - begun) * 1e3)
    print(json.dumps({"milliseconds": found}), flush=True)


if __name__ == "__main__":
    main()
