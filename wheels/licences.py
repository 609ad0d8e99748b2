"""`python -m wheels.licences`: write THIRD-PARTY-LICENSES, the licences of all that is linked into the native modules."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FILE = REPOSITORY / "THIRD-PARTY-LICENSES"
_PLATFORM = "x86_64-unknown-linux-gnu"
_RULE = "=" * 80
#: Of a choice of licences, that which asks for least.
_CHOICE = "MIT"


def linked_crates() -> list[dict[str, str]]:
    """Return name, version, licence and manifest of the crates that the native module is built from, but for our own."""
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", _PLATFORM],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        ).stdout
    )
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {
        node["id"]: [
            dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])
        ]
        for node in metadata["resolve"]["nodes"]
    }
    [root] = [number for number, package in packages.items() if package["name"] == "softs-py"]
    found, waiting = {root}, [root]
    while waiting:
        new = set(needs[waiting.pop()]) - found
        found |= new
        waiting += new
    crates = [packages[number] for number in found if packages[number]["source"] is not None]
    keys = ("name", "version", "license", "manifest_path")
    return sorted(
        ({key: crate[key] for key in keys} for crate in crates),
        key=lambda crate: (crate["name"], crate["version"]),
    )


def texts_of(folder: Path, licence: str) -> list[str]:
    """Return the texts of a crate's licence: of a choice that of the MIT licence, else all that lie in its folder.

    Raises:
        SystemExit: there is none.
    """
    files = sorted(path for path in folder.iterdir() if path.name.upper().startswith(("LICEN", "COPYING")))
    files = [path for path in files if path.is_file()]
    if " OR " in licence and " AND " not in licence:
        files = [path for path in files if _CHOICE in path.name.upper()] or files
    if not files:
        raise SystemExit(f"{folder} has no licence file: add its text by hand")
    return [path.read_text().strip() for path in files]


def notice() -> str:
    """Return what the file has to say."""
    parts = [
        "The native modules of softs-fast are linked from the crates below, and with pybind11. libc++ (Apache-2.0 WITH\n"
        "LLVM-exception) and the CUDA runtime (NVIDIA CUDA Toolkit EULA, redistributable) are linked statically."
    ]
    for crate in linked_crates():
        title = f"{crate['name']} {crate['version']} ({crate['license']})"
        folder = Path(crate["manifest_path"]).parent
        parts += [f"{_RULE}\n{title}\n{_RULE}", *texts_of(folder, crate["license"])]
    pybind11 = importlib.metadata.distribution("pybind11")
    [text] = [path.read_text() for path in pybind11.files or [] if path.name == "LICENSE"]
    parts += [f"{_RULE}\npybind11 (BSD-3-Clause)\n{_RULE}", text.strip()]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file; returns the exit status."""
    if arguments:
        print("python -m wheels.licences takes no arguments", file=sys.stderr)
        return 2
    FILE.write_text(notice())
    print(f"{FILE.name}: {len(linked_crates())} crates")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
