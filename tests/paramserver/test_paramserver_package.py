"""What the room shows, and what it loads for that."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from softs_fast.errors import ConfigError
from softs_fast.paramserver import requirements


def test_the_server_is_loaded_when_it_is_asked_for() -> None:
    script = (
        "import sys, softs_fast.paramserver; "
        "print([one for one in sys.modules if one in ('torch', 'uvicorn') or 'paramserver.' in one])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=45)
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.parametrize(("package", "extra"), [("uvicorn", "server"), ("urllib3", "paramworker")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package: Any, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'softs-fast\[{extra}\]'"):
        requirements.import_package(package)
