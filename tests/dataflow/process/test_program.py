"""A process that begins anew keeps its number, its folder and what it was given; all else of it has gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from waiting import WATCHDOG_S

from softs_fast.dataflow.process import anew

#: Where its module is found without the package, which imports torch for seconds.
FOLDER = {"FOLDER": str(Path(anew.__file__).parent)}

SCRIPT = """
    import json, multiprocessing, os, signal, sys, threading, time
    sys.path.append(os.environ["FOLDER"])
    from anew import Program

    def sleep():
        time.sleep(1000)

    def note(number, frame):
        print(json.dumps({"signal": number}), flush=True)

    if __name__ == "__main__":
        begun = "BEGUN" in os.environ
        if begun:
            signal.signal(signal.SIGTERM, note)
        program = Program(is_anew=begun)
        given = int(os.environ["GIVEN"])
        file = open(__file__)
        inheritable = os.dup(file.fileno())
        os.set_inheritable(inheritable, True)
        found = {
            "pid": os.getpid(),
            "folder": os.getcwd(),
            "arguments": sys.argv[1:],
            "given": os.readlink(f"/proc/self/fd/{given}"),
            "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
            "threads": threading.active_count(),
            "variables": [os.environ.get("ADDED"), os.environ.get("CHANGED")],
            "child": int(os.environ.get("CHILD", "0")),
        }
        print(json.dumps(found), flush=True)
        if not begun:
            os.chdir("/")
            os.environ["CHANGED"] = "yes"
            child = multiprocessing.get_context("fork").Process(target=sleep)
            child.start()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            os.kill(os.getpid(), signal.SIGTERM)  # it arrives while the program begins anew
            anew = lambda: program.begin_anew({"BEGUN": "1", "ADDED": "2", "CHILD": str(child.pid)})
            threading.Thread(target=anew).start()
            threading.Event().wait()
        sys.exit(7)
"""


def test_a_program_begins_anew(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    given = os.open(tmp_path, os.O_RDONLY)
    try:
        process = subprocess.Popen(
            [sys.executable, script.name, "one", "two words"],
            cwd=tmp_path,
            env={**os.environ, **FOLDER, "GIVEN": str(given)},
            pass_fds=[given],
            stdout=subprocess.PIPE,
            text=True,
        )
        out, _ = process.communicate(timeout=WATCHDOG_S)
    finally:
        os.close(given)
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 7
    first, (second,) = lines[0], [line for line in lines[1:] if "pid" in line]
    assert [line for line in lines[1:] if "signal" in line] == [{"signal": signal.SIGTERM}]
    child = second.pop("child")
    assert second.pop("variables") == ["2", None]
    assert {**first, "child": 0, "variables": 0} == {**second, "child": 0, "variables": 0}
    assert first["pid"] == process.pid
    assert first["arguments"] == ["one", "two words"]
    assert Path(first["given"]) == Path(first["folder"]) == tmp_path
    assert not Path(f"/proc/{child}").exists()


STUCK = """
    import logging, os, sys, threading
    sys.path.append(os.environ["FOLDER"])
    from anew import Program, say_last

    begun = "BEGUN" in os.environ
    program = Program(is_anew=begun)
    if begun:
        print("begun anew", flush=True)
        sys.exit(7)
    logging.basicConfig(stream=sys.stdout)
    (handler,) = logging.getLogger().handlers
    held = threading.Event()

    def hold():
        handler.acquire()
        held.set()
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    say_last(lambda: logging.warning("this is not said"))
    program.begin_anew({"BEGUN": "1"})
"""


def test_a_program_begins_anew_while_a_thread_holds_the_lock_of_a_handler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(STUCK))
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **FOLDER}, stdout=subprocess.PIPE, text=True,
        timeout=WATCHDOG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "begun anew\n")
