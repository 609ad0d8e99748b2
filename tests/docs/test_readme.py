"""The pages for newcomers are true: the quickstart runs, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.timeout(120)
def test_quickstart_runs(tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    section = readme.split("\n## Quickstart\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    assert "/tmp/" in code
    script = tmp_path / "quickstart.py"
    # Its own sockets: another quickstart may be running on this machine.
    script.write_text(code.replace("/tmp/", f"{tmp_path}/"))

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (shown,) = re.findall(r"```text\n(.*?)```", section, flags=re.DOTALL)
    assert done.stdout == shown


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "lint"} <= targets
    text = page.read_text()
    # In `code spans` and at the start of lines of code blocks.
    named = set(re.findall(r"`make ([a-z]+)", text)) | set(
        re.findall(r"^make ([a-z]+)", text, flags=re.MULTILINE)
    )
    assert named <= targets


def test_help_names_every_target() -> None:
    shown = subprocess.run(
        ["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    makefile = (REPOSITORY / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert set(re.findall(r"make ([a-z]+)", shown)) >= set(phony.split())
