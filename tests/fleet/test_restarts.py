"""When a worker that has failed starts again."""

from softs_fast.fleet.restarts import RestartPolicy, Restarts

POLICY = RestartPolicy(max_restarts=8, first_pause_s=0.5, longest_pause_s=30.0, sound_s=60.0)


def test_pauses_double_to_a_limit_and_then_the_worker_is_given_up() -> None:
    restarts = Restarts(POLICY)
    pauses = [restarts.pause_after(1.0) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]


def test_a_worker_that_has_served_for_long_begins_to_count_anew() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.pause_after(served_s) for served_s in (1.0, 59.0, 60.0, 0.0)] == [0.5, 1.0, 0.5, 1.0]


def test_no_restart_at_all() -> None:
    assert Restarts(RestartPolicy(max_restarts=0)).pause_after(1e6) is None


def test_very_many_failures_have_the_longest_pause() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=5000))
    assert {restarts.pause_after(0.0) for _ in range(4000)} >= {30.0}
