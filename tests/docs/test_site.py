"""The documentation site: its reference is complete, journeys begin with a program, and it reads well in a browser."""

from __future__ import annotations

import ast
import functools
import http.server
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.site import __main__ as site
from docs.site import reference
from waiting import WATCHDOG_S

from softs_fast import __version__

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "python" / "softs_fast"
JOURNEYS = tomllib.loads((REPOSITORY / "zensical.toml").read_text())["project"]["nav"]
WORD = "BrokerTimeout"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def exported(file: Path) -> list[str]:
    """Return the names in `__all__` of a module."""
    for node in ast.parse(file.read_text()).body if file.is_file() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def public(file: Path, module: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names that a module exports, and those of modules among these."""
    for name in exported(file):
        yield module, name
        if inspect.ismodule(getattr(sys.modules[module], name)):
            for below in (file.parent / name / "__init__.py", file.parent / f"{name}.py"):
                yield from public(below, f"{module}.{name}")


def test_every_public_name_has_an_entry(pages: dict[str, str]) -> None:
    files = [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.glob("[a-z]*/__init__.py")]
    modules = {file: file.stem if file.parent == PACKAGE else file.parent.name for file in files}
    names = {one for file, module in modules.items() for one in public(file, f"softs_fast.{module}")}
    names |= {("softs_fast", name) for name in exported(PACKAGE / "__init__.py")}
    assert len(names) > 400
    missing = [
        f"{module}.{name}"
        for module, name in sorted(names)
        if not re.search(rf'{{ #{name} }}|id="{name}"|`{module}.{name}`', pages.get(f"{module}.md", ""))
    ]
    assert missing == []


def test_every_entry_says_something(pages: dict[str, str]) -> None:
    bare = []
    for page in pages.values():
        prose = re.sub(r"```(?:python|pycon)\n.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
        bare += re.findall(r"^###+ `([^`]+)` \{.*\}\n\s*(?=^#|\Z)", prose, flags=re.MULTILINE)
    # `MediumBase` documents the members of this interface.
    assert [name for name in bare if not name.startswith("Medium.")] == []


def test_every_command_has_an_entry(pages: dict[str, str]) -> None:
    overview = (REPOSITORY / "docs" / "cli.md").read_text().partition("```\n")[2].partition("```")[0]
    headings = re.findall(r"^## `softs-fast (.*?)`", pages["commands.md"], flags=re.MULTILINE)
    groups = {heading.split()[0] for heading in headings if " " in heading}
    for line in overview.splitlines():
        _, *words = line.split()
        assert " ".join(words[: 2 if words[0] in groups else 1]) in headings
    assert len(headings) > 25


@pytest.mark.parametrize("name", JOURNEYS)
def test_a_journey_begins_with_a_program_and_what_comes_out(name: str, pages: dict[str, str]) -> None:
    beginning, _, _ = (REPOSITORY / name).read_text().partition("\n## Read next\n")
    assert 10 <= len(beginning.splitlines()) <= 35
    program, _, rest = beginning.partition("```sh\n")[2].partition("```")
    assert "```" not in beginning.partition("```sh\n")[0]
    assert "![" in rest or "```text" in rest
    for text in re.findall(r"```text\n(usage: .*?)```", rest, flags=re.DOTALL):
        assert " ".join(text.split()) in " ".join(pages["commands.md"].split())
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tests = "".join(path.read_text() for path in (REPOSITORY / "tests" / "examples").glob("*.py"))
    for line in program.splitlines():
        command = line.partition("#")[0].split()
        match command:
            case ["pip", "install", what]:
                assert set(re.findall(r"[\[,](\w+)", what)) <= set(extras)
            case ["python", example]:
                assert Path(example).stem in tests, f"no test runs {example}"
            case ["softs-fast", *words]:
                words = [word for word in words if word[0] not in "-"]
                assert f"## `softs-fast {' '.join(words)}` " in pages["commands.md"]
            case ["python", "-m", "softs_fast.dropin" as module, *_] | ["python", "-m", "pydoc", module]:
                assert importlib.util.find_spec(module)
            case _:
                assert command[0] == "make", f"{line} is not checked"


def test_docstrings_become_markdown() -> None:
    docstring = """Do it with *args, <b>.

    Args:
        a: `<it>`,
            at most 2*3.

    Raises:
        ConfigError: too long.

    Example:
        >>> 2 * 3
        6
    """
    assert re.sub(r"\n\n+", "\n", reference.markdown(docstring)).strip() == (
        "Do it with \\*args, &lt;b>.\n**Args**\n- `a`: `<it>`,\n    at most 2\\*3.\n"
        "**Raises**\n- `ConfigError`: too long.\n**Example**\n```pycon\n>>> 2 * 3\n6\n```"
    )


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1>')
    links = ["b.html", "b.html#here", "b.html#there", "c.html", "#a", "https://example.org"]
    page = '<p id="a"><script src="https://example.org/a.js"></script><img src="a.png">'
    (tmp_path / "a.html").write_text(page + "".join(f'<a href="{link}">' for link in links))
    assert site.broken_links(tmp_path) == [
        "a.html: <a> b.html#there",
        "a.html: <a> c.html",
        "a.html: <img> a.png",
        "a.html: <script> https://example.org/a.js",
    ]


def test_lists_and_tables_get_the_empty_lines_that_they_need() -> None:
    text = "Text\n* one\n  more\n* two\n```python title=a.py\nx\n- y\n```\n| a |\n|---|\n"
    assert site.adapted(text) == (
        'Text\n\n* one\n  more\n* two\n```python title="a.py"\nx\n- y\n```\n\n| a |\n|---|\n'
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, which is built without a fault."""
    pytest.importorskip("zensical", reason="needs the extra docs: zensical")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "docs.site", folder], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_site_has_no_fault(built: Path) -> None:
    pages = {page.stem for page in (REPOSITORY / "docs").glob("*.md")}
    assert pages <= {page.stem for page in built.glob("docs/*.html")}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("PyQt6") is None, reason="needs the extra browser: PyQt6-WebEngine"
)
def test_the_site_reads_well_in_a_browser(built: Path, tmp_path: Path) -> None:
    """Each page is laid out at 1,440 and at 390 pixels."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(built))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    names = {path.relative_to(built).as_posix() for path in built.rglob("*.html")} - {
        "404.html",
        "index.html",
    }
    environment = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu --no-sandbox",
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    program = [sys.executable, Path(__file__).parent / "site_in_browser.py", address, WORD, "index.html"]
    browser = subprocess.run(
        [*program, *sorted(names)], env=environment, capture_output=True, text=True, timeout=10 * WATCHDOG_S
    )
    server.shutdown()
    server.server_close()
    assert browser.returncode == 0, browser.stderr
    seen = json.loads(browser.stdout.splitlines()[-1])
    assert seen["errors"] == []
    assert [url for url in seen["requests"] if not url.startswith((address, "data:", "blob:"))] == []
    assert f"{address}/reference/softs_fast.html?h={WORD}#{WORD}" in seen["results"]
    assert seen["clipboard"].strip() == seen["block"].strip() != ""
    assert len(seen["pages"]) == len(names) + 1
    wrong = {
        name: layouts
        for name, layouts in seen["pages"].items()
        if any(
            not one["title"] or one["version"] != __version__ or one["overflow"] > 0 or one["lost"]
            for one in layouts
        )
    }
    assert wrong == {}
