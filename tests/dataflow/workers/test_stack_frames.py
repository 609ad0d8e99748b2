"""Stacks as a worker writes them, and what is shown of them."""

from __future__ import annotations

import random

from softs_fast.dataflow.workers.sightings import frames_of, innermost

STACK = """Stack (most recent call first):
  File "/home/me/model.py", line 31 in attend
  File "/home/me/model.py", line 12 in forward
  File "/env/softs_fast/dataflow/process/functions.py", line 90 in call_function
  File "/env/softs_fast/dataflow/process/loop.py", line 120 in _run
  File "/usr/lib/python3.11/threading.py", line 982 in run
"""


def test_frames_of_the_function_are_shown_without_those_of_the_worker() -> None:
    frames = frames_of(STACK)
    assert frames == ("/home/me/model.py:31 attend", "/home/me/model.py:12 forward")
    assert innermost(frames) == "/home/me/model.py:31 attend, called from /home/me/model.py:12 forward"


def test_a_worker_that_waits_in_its_own_code_is_shown_from_there() -> None:
    ours = "".join(STACK.splitlines(keepends=True)[3:])
    assert frames_of(ours)[0] == "/env/softs_fast/dataflow/process/functions.py:90 call_function"


def test_a_line_without_a_number_is_shown() -> None:
    assert frames_of('  File "<frozen importlib>", line ??? in load') == ("<frozen importlib>:??? load",)


def test_an_answer_without_frames_is_shown_as_it_is() -> None:
    assert frames_of("no stack: why\nmore") == ("no stack: why",)
    assert frames_of("") == ("no stack: nothing was written",)
    assert innermost(()) == ""


def test_whatever_a_worker_answers_is_bounded_and_cannot_steer_a_terminal() -> None:
    chance = random.Random(3)
    pieces = ['  File "', '", line ', "7", " in ", "\n", "\x1b[2J", "x" * 300, "???", "\r", "é"]
    for _ in range(500):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(0, 60)))
        frames = frames_of(text)
        assert 1 <= len(frames) <= 12
        assert all(len(one) <= 200 and "\n" not in one for one in frames)
        assert all("\x1b" not in one for one in frames)
    deep = "".join(f'  File "m.py", line {i} in f\n' for i in range(100))
    assert frames_of(deep) == tuple(f"m.py:{i} f" for i in range(12)), "the innermost"
    assert innermost(frames_of(deep)).count("called from") == 2
