"""Switching without end: no process gets a sample of an earlier model, whichever makes and takes them."""

import threading
from typing import Any

import pytest
from samples import CONFIG, check, take
from school import School
from side_by_side import in_threads

from softs_fast import DistillDataLoader, DistillIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_four_workers_two_students_and_their_loaders(school: School, method: str) -> None:
    school.broker()
    for _ in range(4):
        school.worker()
    students = [school.student(rank, slot_count=4) for rank in range(2)]
    leader, follower = students
    follower.start_sub_listener()
    follower.hello()
    follower.wait_for_generation(leader.set_model("1"))
    loaders = [
        DistillDataLoader(
            DistillIterableDataset(rank, students[rank].generation_value, 8, CONFIG, school.frontend),
            batch_size=2,
            num_workers=1,
            multiprocessing_context=method,
        )
        for rank in range(2)
    ]
    meeting = threading.Barrier(2)

    def train(rank: int) -> None:
        batches = iter(loaders[rank])
        for model in range(1, 41):
            if model > 1:
                if rank == 0:
                    leader.set_model(str(model))
                # All that have met have switched: from here on nothing else may come.
                meeting.wait(30)
                students[rank].wait_for_generation(model)
            for _ in range(model % 3):
                batch = next(batches)
                for row in range(2):
                    sample = {name: tensor[row] for name, tensor in batch.items()}
                    assert check(sample, rank) == model
            sample_ref = take(students[rank])
            assert check(sample_ref.tensors(), rank) == model == sample_ref.generation
            students[rank].release_slot(sample_ref.slot_id)
            # No rank switches while another one still checks.
            meeting.wait(30)

    in_threads(train, range(2))


def test_a_follower_that_is_switched_while_it_takes(school: School) -> None:
    school.broker()
    for _ in range(2):
        school.worker()
    leader, follower = school.student(0), school.student(1)
    follower.start_sub_listener()
    follower.wait_for_generation(leader.set_model("1"))
    done = threading.Event()

    def switch() -> None:
        for model in range(2, 200):
            leader.set_model(str(model))
        done.set()

    thread = threading.Thread(target=switch)
    thread.start()
    last: Any = 0
    while not done.is_set() or last < 199:
        before = follower.generation
        sample = take(follower)
        model = check(sample.tensors(), 1)
        # What it says it is, it is; and it is nothing that was over before it was asked for.
        assert sample.generation == model >= before
        assert model >= last
        last = model
        follower.release_slot(sample.slot_id)
    thread.join()
