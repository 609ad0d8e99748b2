"""The pages for newcomers are true: the quickstart runs, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])


def page_id(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.timeout(120)
def test_quickstart_runs(tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    # It is read on one screen, or two, and the first hour of a user begins with few lines.
    assert len(readme.splitlines()) <= 95
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    script = tmp_path / "quickstart.py"
    script.write_text(code)

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    # Under load it may take a while.
    assert re.sub(r"\d of 2 workers serve after \d+ s\n", "", done.stderr) == ""
    (shown,) = re.findall(r"```text\n(.*?)```", readme, flags=re.DOTALL)
    assert done.stdout == shown


# What the other snippets take for granted, and what shows that they did something.
RANK = """
import torch, torch.distributed as dist
rank, size = 0, 1
world_size = size
dist.init_process_group("gloo", store=dist.HashStore(), rank=rank, world_size=size)
process_group = dist.group.WORLD
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
tensor = torch.ones(3)
model(torch.ones(1, 2)).sum().backward()
"""
STEP = """
model.zero_grad()
model(torch.ones(1, 2)).sum().backward()
assert model.module.weight.grad.tolist() == [[1.0, 1.0]], model.module.weight.grad
"""
SNIPPETS = {
    ("docs/collectives.md", "register_comm_hook"): (RANK, STEP),
    ("docs/cli.md", "MetricsServer"): (
        "import softs_fast as sf\nbroker = sf.Broker()\nbroker.start()\n",
        "",
    ),
}


def snippet(page: str, text: str) -> str:
    """The program in a page that contains a text."""
    programs = re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), flags=re.DOTALL)
    (found,) = [program for program in programs if text in program]
    return str(found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("page", "text"), SNIPPETS)
def test_snippets_run(short_path: Path, page: str, text: str) -> None:
    before, after = SNIPPETS[page, text]
    program = before + snippet(page, text) + after
    script = short_path / "snippet.py"
    # Its own sockets, and any free port.
    here = f'"ipc://{short_path}/'
    program = program.replace('"ipc:///tmp/', here).replace(":9464", ":0")
    program = program.replace("sf.Broker()", f'sf.Broker({here}softs_frontend.sock", {here}b")')
    script.write_text(program)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    missing = [target for target in local if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_commands_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "lint"} <= targets
    text = page.read_text()
    # In `code spans` and at the start of lines of code blocks.
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(
        re.findall(r"^make ([a-z-]+)", text, flags=re.MULTILINE)
    )
    assert named <= targets


def test_help_names_every_target() -> None:
    shown = subprocess.run(
        ["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    makefile = (REPOSITORY / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert set(re.findall(r"make ([a-z-]+)", shown)) >= set(phony.split())
