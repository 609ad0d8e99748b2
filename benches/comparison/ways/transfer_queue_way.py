from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import transfer_queue as tq
from tensordict import TensorDict

from benches.comparison.teacher import BATCH, N_TEACHERS, teach


@ray.remote(num_cpus=0.5, max_restarts=-1, max_task_retries=-1)
class Teacher:
    def __init__(self):
        tq.init()

    def make(self, first: int) -> list[str]:
        keys = [str(number) for number in range(first, first + BATCH)]
        tq.kv_batch_put(keys, "train", TensorDict(teach(range(first, first + BATCH)), batch_size=BATCH))
        return keys


@contextmanager
def batches() -> Iterator[Iterator[dict]]:
    ray.init(num_cpus=2 * N_TEACHERS, include_dashboard=False)
    tq.init()

    def take():
        teachers = [Teacher.remote() for _ in range(N_TEACHERS)]
        made, number = deque(), 0
        while True:
            while len(made) < 4 * N_TEACHERS:
                made.append(teachers[number % N_TEACHERS].make.remote(number * BATCH))
                number += 1
            keys = ray.get(made.popleft())
            yield dict(tq.kv_batch_get(keys, "train").items())
            tq.kv_clear(keys, "train")

    yield take()
    tq.close()
    ray.shutdown()
