"""A step runs within its limit, and its end is told, whatever it does; nothing of it is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softs_fast.gpu.plan import Step
from softs_fast.gpu.run import Outcome, run_step

#: Limit of a step that is to end by itself.
LONG_S = 45.0


def outcome_of(name: str, limit_s: float = LONG_S, needs_gpu: bool = False) -> Outcome:
    return run_step(Step(name, "", f"made_up_steps:{name}", limit_s, needs_gpu), quick=True)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_step_that_passes() -> None:
    outcome = outcome_of("passes")
    assert (outcome.state, outcome.reason, outcome.output) == ("passed", "", "some output\n")
    assert outcome.result == {"note": "found it", "quick": True, "is the leader of its session": True}
    assert outcome.seconds > 0


def test_a_step_that_loads_everything_anew() -> None:
    step = Step("passes", "", "made_up_steps:passes", LONG_S)
    assert run_step(step, quick=False, start_method="spawn").result["quick"] is False


@pytest.mark.parametrize("name", ["passes_late", "hangs_and_ignores_signals"])
def test_a_step_does_not_pass_after_its_limit(name: str) -> None:
    outcome = outcome_of(name, limit_s=0.5)
    assert (outcome.state, outcome.reason) == ("timed out", "not done within 0.5 s")


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("fails", "failed", "ValueError: the cause"),
        ("crashes", "killed", "by SIGSEGV"),
        ("is_killed", "killed", "by SIGKILL"),
        ("exits", "failed", "ended with status 3, without a result"),
        (
            "there_is_none",
            "failed",
            "AttributeError: module 'made_up_steps' has no attribute 'there_is_none'",
        ),
        ("crashes_at_its_end", "failed", "ended with SIGSEGV after its result"),
    ],
)
def test_how_a_step_has_failed_is_told(name: str, state: str, reason: str) -> None:
    outcome = outcome_of(name)
    assert (outcome.state, outcome.reason) == (state, reason)


def test_output_of_a_crash_is_kept_with_the_place() -> None:
    output = outcome_of("crashes").output
    assert output.startswith("before the crash\n")
    assert "in crashes\n" in output, "faulthandler's traceback"


def test_a_step_that_hangs_is_killed_with_its_children_and_its_place_is_told() -> None:
    outcome = outcome_of("hangs", limit_s=2.0)
    assert (outcome.state, outcome.reason) == ("timed out", "not done within 2 s")
    pids = json.loads(next(line for line in outcome.output.splitlines() if "pids" in line))["pids"]
    assert "in hangs\n" in outcome.output, "where it hangs"
    assert not any(map(runs, pids))


def test_a_step_that_leaves_children_passes_and_they_are_killed() -> None:
    outcome = outcome_of("leaves_children")
    assert (outcome.state, outcome.reason) == ("passed", "")
    pids = outcome.result["pids"]
    assert len(pids) == 3
    assert not any(map(runs, pids))


def test_a_step_that_does_not_end_after_its_result_is_killed() -> None:
    outcome = outcome_of("never_ends_after_its_result")
    assert (outcome.state, outcome.result) == ("passed", {"note": "done"})
    assert outcome.reason == "did not end by itself within 5 s after its result"


def test_of_megabytes_the_end_is_kept() -> None:
    outcome = outcome_of("prints_megabytes")
    assert outcome.state == "passed"
    assert outcome.output.endswith("xxx" + "the end, \xe4\ufffd\n")
    assert len(outcome.output) <= 16 << 10


def test_a_step_that_prints_for_ever_is_killed() -> None:
    outcome = outcome_of("prints_for_ever", limit_s=0.5)
    assert outcome.state == "timed out"
    assert "yyy" in outcome.output
