"""Builds the documentation site: ``python -m docs.site FOLDER`` writes FOLDER/html. `make docs` runs it.

The pages are those of the repository, in the same folders, so that their links lead to the same places here and there.
Added are the reference, and a page for each source file that a page links to.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import softs_fast

from . import reference

REPOSITORY = Path(__file__).parents[2]
PICTURES = {".png", ".svg"}
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
#: Ids of an HTML page, and what it links to or loads.
ID = re.compile(r'\s(?:id|name)="([^"]+)"')
TARGET = re.compile(r'<(\w+)[^>]*?\s(?:href|src)="([^"]*)"')


def build(folder: Path) -> list[str]:
    """Build the site in a folder, and return what is wrong with it, one line each; it is complete if there is nothing."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    sources = copy_pages(pages)
    for name, text in reference.pages().items():
        write(pages / "reference" / name, text)
    config = (REPOSITORY / "zensical.toml").read_text()
    nav = as_toml([{"Start": "index.md"}, *journeys(pages, tomllib.loads(config)["project"]["nav"], sources)])
    settings = re.sub(r"^nav = \[.*?^\]", lambda _: f"nav = {nav}", config, flags=re.MULTILINE | re.DOTALL)
    write(folder / "zensical.toml", settings)

    listed = set(re.findall(r'"([^"]+\.md)"', nav))
    written = {path.relative_to(pages).as_posix() for path in pages.rglob("*.md")}
    faults = [f"{page}: no journey lists it" for page in sorted(written - listed)]
    faults += [f"{page}: a journey lists it, and it does not exist" for page in sorted(listed - written)]
    if faults:
        return faults
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--config-file",
        folder / "zensical.toml",
    ]
    if subprocess.run(command).returncode:
        return ["zensical names what is wrong above"]
    version = {"version": softs_fast.__version__, "title": softs_fast.__version__, "aliases": ["latest"]}
    write(folder / "html" / "versions.json", json.dumps([version]))
    return broken_links(folder / "html")


def copy_pages(pages: Path) -> list[str]:
    """Copy the pages of the repository, write one for each source file that they link to, and return the names of these."""
    sources: set[str] = set()
    found = [path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").rglob("*.md")]
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *found]:
        page = REPOSITORY / name

        def follow(link: re.Match[str], page: Path = page) -> str:
            target = (page.parent / link[1]).resolve()
            if target.suffix in {".md", *PICTURES} or not target.is_file():
                return link[0]
            sources.add(target.relative_to(REPOSITORY).as_posix())
            return f"]({link[1]}.md)"

        to = "index.md" if name == "README.md" else name
        write(pages / to, adapted(LINK.sub(follow, page.read_text())))
    for path in (REPOSITORY / "docs").iterdir():
        if path.suffix in PICTURES:
            shutil.copy(path, pages / "docs")
    shutil.copy(Path(__file__).parent / "site.css", pages)
    for name in sources:
        language = "python" if name.endswith(".py") else "text"
        text = (REPOSITORY / name).read_text()
        write(pages / f"{name}.md", f"# {name}\n\n````{language}\n{text}````\n")
    return sorted(f"{name}.md" for name in sources)


def adapted(text: str) -> str:
    """Return a page as Python-Markdown needs it: titles of code in quotes, and empty lines before lists and tables."""
    lines: list[str] = [""]
    is_code = False
    for line in text.splitlines():
        is_first = re.match(r"[*-] |1\. |\|", line) and not re.match(r"[*-] |\d+\. |\||\s|$", lines[-1])
        lines += ["", line] if is_first and not is_code else [line]
        is_code ^= line.startswith("```")
    return re.sub(r"^(```\w+ title=)(\S+)$", r'\1"\2"', "\n".join(lines[1:]) + "\n", flags=re.MULTILINE)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def journeys(pages: Path, landings: list[str], sources: list[str]) -> list[dict[str, Any]]:
    """Return the entries of the navigation: each journey with the pages that its landing page lists, in order.

    The last journey has the generated pages as well.
    """
    found = []
    for landing in landings:
        text = (pages / landing).read_text()
        (title,) = re.findall(r"^# (.*)$", text, flags=re.MULTILINE)
        links = LINK.findall(text.partition("\n## Read next\n")[2])
        below = [(pages / landing).parent.joinpath(link).resolve().relative_to(pages) for link, _ in links]
        found.append({title: [landing, *map(str, below)]})
    names = sorted(path.stem for path in (pages / "reference").glob("softs_fast*.md"))
    found[-1][title] += [
        {"Commands": "reference/commands.md"},
        {"Python": [f"reference/{name}.md" for name in names]},
        {"Source files": sources},
    ]
    return found


def as_toml(nav: Any) -> str:
    """Return lists, tables and text as a value of TOML in one line."""
    if isinstance(nav, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(value)}" for key, value in nav.items()) + "}"
    return "[" + ", ".join(map(as_toml, nav)) + "]" if isinstance(nav, list) else json.dumps(nav)


def broken_links(html: Path) -> list[str]:
    """Return a line for each link of a site that leads to no file or no id, and for each file of another host it loads."""
    texts = {path: path.read_text() for path in html.rglob("*.html") if path.name != "404.html"}
    ids = {path: {unquote(one) for one in ID.findall(text)} for path, text in texts.items()}
    faults = set()
    for path, text in texts.items():
        for tag, target in TARGET.findall(text):
            file, _, anchor = unquote(target).partition("#")
            if re.match(r"[a-z]+:|//", target):
                bad = tag != "a" and not target.startswith("data:")
            else:
                aim = (path.parent / file).resolve() if file else path
                bad = not aim.is_file() or bool(anchor and aim in ids and anchor not in ids[aim])
            if bad:
                faults.add(f"{path.relative_to(html)}: <{tag}> {target}")
    return sorted(faults)


if __name__ == "__main__":
    wrong = build(Path(sys.argv[1]).resolve())
    print("\n".join(wrong) or f"the site is in {sys.argv[1]}/html")
    sys.exit(bool(wrong))
