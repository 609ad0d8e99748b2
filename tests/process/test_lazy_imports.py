"""Names that are imported when they are first used, and a room that any system can import."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_module_is_imported_when_one_of_its_names_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "values.py").write_text("one, two = 1, 2")
    table = '{"values": "one two"}'
    (folder / "__init__.py").write_text(
        "from softs_fast.process import lazy\n"
        "__all__ = ['one', 'two']\n"
        f"__getattr__, __dir__ = lazy(__name__, {table})"
    )
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("lazy_package")
    assert {"one", "two", "__all__"} <= set(dir(package))
    assert "lazy_package.values" not in sys.modules
    assert (package.one, package.two) == (1, 2)
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'three'"):
        _ = package.three


WITHOUT_FORKS = """
import os, sys
del os.fork, os.register_at_fork
for name in ("resource", "softs_fast._core", "softs_fast._kernels"):
    sys.modules[name] = None
import softs_fast.process
"""


def test_the_room_is_imported_where_there_are_no_forks() -> None:
    """On Windows: the wheel for any platform has the package and `paramserver`, which need this room."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_FORKS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
