"""The steps, their order and their limits."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from softs_fast.errors import ConfigError
from softs_fast.gpu.plan import MACHINE, STEPS, Step, chosen

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"


def test_the_page_tells_the_longest_time() -> None:
    (minutes,) = re.findall(r"ends within (\d+) minutes", PAGE.read_text())
    assert sum(step.limit_s for step in (MACHINE, *STEPS)) <= 60 * int(minutes)


def test_the_order_is_by_what_is_proved_per_second() -> None:
    names = [step.name for step in STEPS]
    order = ["facts", "memory", "pack", "reduce", "all-reduce-2", "all-reduce-4", "medium", "pinned"]
    order += ["deaths", "teacher-deaths", "slot-write", "all-reduce-times", "step-copy", "in-kernel"]
    assert names == order


@pytest.mark.parametrize("step", [MACHINE, *STEPS], ids=lambda step: step.name)
def test_each_step_is_a_function_that_takes_quick(step: Step) -> None:
    module, _, name = step.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    assert next(iter(inspect.signature(function).parameters)) == "quick"


def test_the_page_has_each_step_in_this_order() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [step.name for step in STEPS]


def test_steps_are_chosen_by_name_in_the_order_of_the_plan() -> None:
    assert [step.name for step in chosen(["pack", "facts", "pack"])] == ["facts", "pack"]
    assert chosen(None) == list(STEPS)
    with pytest.raises(ConfigError, match='there is no step "packs"; need some of: facts, memory, pack, '):
        chosen(["pack", "packs"])
