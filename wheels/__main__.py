"""`python -m wheels [FOLDER]`: an sdist, a wheel for each fit Python of this machine, and one without native modules.

All are checked, used and listed. Runs in an environment with `requirements.txt`, which `make wheels` makes. The files
go to FOLDER (default: dist).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

from wheels import plan, smoke
from wheels.interpreters import Interpreter, choose, find, unfit
from wheels.workplace import workplace

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent


def main(arguments: Sequence[str]) -> int:
    """Build, check and list; returns the exit status."""
    chosen = chosen_interpreters()
    dist = Path(arguments[0] if arguments else REPOSITORY / "dist").resolve()
    dist.mkdir(parents=True, exist_ok=True)
    with workplace() as work:
        sdist, *wheels, pure = build(chosen, work)
        files = [describe(file) for file in (sdist, *wheels, pure)]
        wrong = plan.complaints(files)
        for interpreter, wheel in zip(chosen, wheels, strict=True):
            use(interpreter, wheel, work / f"smoke-{interpreter.tag}")
        use_pure(chosen[0], pure, work / "smoke-pure")
        for file in (sdist, *wheels, pure):
            shutil.move(file, dist / file.name)
    print(plan.table(files))
    if git("status", "--porcelain"):
        print("The tree has changes that are not committed: these files are not a release.")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def chosen_interpreters() -> list[Interpreter]:
    """Return the interpreters that get a wheel, and say why others do not.

    Raises:
        SystemExit: there is none.
    """
    found = find()
    for interpreter in {other.path.resolve(): other for other in found}.values():
        if reason := unfit(interpreter):
            say(f"no wheel for {interpreter.path}: {reason}")
    chosen = choose(found)
    if not chosen:
        raise SystemExit(
            "no fit Python on PATH or among pyenv's versions: need CPython 3.11 to 3.14 with Python.h"
        )
    return chosen


def build(chosen: Sequence[Interpreter], work: Path) -> list[Path]:
    """Make the sdist, and all wheels from it; returns the sdist, then the wheels, that without native modules last."""
    tools = plan.Tools(Path(sys.prefix, "bin"), Path(sysconfig.get_path("purelib")))
    compiler, headers = work / "zig-c++", work / "headers"
    compiler.write_text(plan.compiler_script(tools))
    compiler.chmod(0o755)
    shutil.copytree(HERE / "headers", headers)
    tree, fresh = work / "tree", work / "dist"
    fresh.mkdir()
    epoch = int(git("log", "-1", "--format=%ct"))
    variables = plan.environment(os.environ, tools, tree, compiler, headers, epoch)

    say("making the sdist")
    sdist = call_backend(Path(sys.executable), f"build_sdist({str(fresh)!r})", fresh, REPOSITORY, variables)
    shutil.unpack_archive(sdist, work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    unpacked.rename(tree)
    files = [sdist]
    for interpreter in chosen:
        say(f"building for {interpreter.tag} with {interpreter.path}")
        call = f"build_wheel_in(pathlib.Path({str(work / 'kernels')!r}), {str(fresh)!r})"
        files.append(call_backend(interpreter.path, call, fresh, tree, variables))
    call = f"build_pure_wheel({str(fresh)!r})"
    files.append(call_backend(Path(sys.executable), call, fresh, tree, variables))
    return files


def call_backend(python: Path, call: str, folder: Path, tree: Path, variables: dict[str, str]) -> Path:
    """Call a function of `build_backend.py` of a tree; returns the file that it makes in a folder.

    Raises:
        SystemExit: it failed; the message has all that it printed.
    """
    before = set(folder.iterdir())
    program = f"import build_backend, pathlib; build_backend.{call}"
    smoke.run(python, "-c", program, env=variables, cwd=tree)
    (made,) = set(folder.iterdir()) - before
    return made


def describe(file: Path) -> plan.File:
    """Return what is known of a file; auditwheel is asked about wheels."""
    platform = ""
    if file.suffix == ".whl" and not plan.is_pure(file.name):
        platform = json.loads(smoke.run(sys.executable, "-m", "auditwheel", "show", "--json", file))[
            "overall_tag"
        ]
    data = file.read_bytes()
    return plan.File(file.name, len(data), hashlib.sha256(data).hexdigest(), platform)


def use(interpreter: Interpreter, wheel: Path, folder: Path) -> None:
    """Use a wheel in an empty environment; with torch, if an environment of this tree has one for this Python."""
    say(f"using {wheel.name} in an empty environment")
    folder.mkdir()
    smoke.check(interpreter.path, wheel, package_version(), plan.ARCHITECTURES, folder)
    name = "python{}.{}".format(*interpreter.version)
    for torch in sorted(REPOSITORY.glob(f".venv*/lib/{name}/site-packages/torch")):
        smoke.check_loader(folder, torch.parent)
        return
    say(f"its loader was not run: no environment of this tree has torch for {name}")


def use_pure(interpreter: Interpreter, wheel: Path, folder: Path) -> None:
    """Use the wheel without native modules in an empty environment."""
    say(f"using {wheel.name} in an empty environment")
    folder.mkdir()
    smoke.check_pure(interpreter.path, wheel, package_version(), folder)


def package_version() -> str:
    """Return the version of the workspace."""
    version: str = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    return version


def git(*arguments: str) -> str:
    """Return what git prints."""
    return smoke.run("git", "-C", REPOSITORY, *arguments).strip()


def say(line: str) -> None:
    """Print what comes next, at once: it takes minutes."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
