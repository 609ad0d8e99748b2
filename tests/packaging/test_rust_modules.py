"""The tree of each Rust crate: no circle of modules, few files in the root, one form of folder, short files."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from rust_modules import circles, describe, edges_of, read_crate

REPOSITORY = Path(__file__).parents[2]
MEMBERS = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())["workspace"]["members"]
CRATES = [pytest.param(REPOSITORY / member, id=Path(member).name) for member in MEMBERS]
# Examples of several files are crates too.
ROOTS = [
    pytest.param(root, id=str(root.relative_to(REPOSITORY)))
    for member in MEMBERS
    for root in [
        REPOSITORY / member / "src" / "lib.rs",
        *sorted((REPOSITORY / member).glob("examples/*/main.rs")),
    ]
]
MAX_ROOT_FILES = 10
MAX_LINES = 500


def circles_of(root: Path) -> list[str]:
    edges = edges_of(read_crate(root))
    return [describe(circle, edges, root.parent) for circle in circles(edges)]


@pytest.mark.parametrize("root", ROOTS)
def test_no_modules_use_each_other(root: Path) -> None:
    assert not circles_of(root), "\n".join(circles_of(root))


@pytest.mark.parametrize("root", ROOTS)
def test_every_source_file_is_read(root: Path) -> None:
    """A file that the checker cannot find would hide its circles."""
    crate = read_crate(root)
    assert all(module.file.exists() for module in crate.walk())
    assert any(edges_of(crate).values())


@pytest.mark.parametrize("crate", CRATES)
def test_the_root_of_a_crate_has_few_files(crate: Path) -> None:
    files = sorted(file.name for file in (crate / "src").glob("*.rs"))
    assert len(files) <= MAX_ROOT_FILES, f"{len(files)} files, at most {MAX_ROOT_FILES}: {', '.join(files)}"


@pytest.mark.parametrize("crate", CRATES)
def test_folders_have_one_form_and_more_than_one_file(crate: Path) -> None:
    assert not folder_faults(crate / "src"), "\n".join(folder_faults(crate / "src"))


@pytest.mark.parametrize("crate", CRATES)
def test_files_are_short(crate: Path) -> None:
    lengths = {file: len(file.read_text().splitlines()) for file in (crate / "src").rglob("*.rs")}
    long = {str(file.relative_to(crate)): n for file, n in lengths.items() if n > MAX_LINES}
    assert not long, f"files of more than {MAX_LINES} lines: {long}"


def folder_faults(source: Path) -> list[str]:
    """What is wrong with the folders below `source`."""
    faults = []
    for folder in sorted(path for path in source.rglob("*") if path.is_dir()):
        if not (folder / "mod.rs").exists():
            faults.append(f"{folder.relative_to(source)}/ has no mod.rs")
        if folder.with_suffix(".rs").exists():
            faults.append(
                f"{folder.relative_to(source)}.rs stands beside its folder: make it {folder.name}/mod.rs"
            )
        if len(list(folder.rglob("*.rs"))) < 2:
            faults.append(f"{folder.relative_to(source)}/ is a folder of one file")
    return faults


# -- the checker itself, on trees that are made up -----------------------------------------------------------


#: Files of a crate, without their ending, and which of them use each other for what.
TREES: dict[str, tuple[dict[str, str], list[str]]] = {
    "two files": (
        {
            "lib": "mod a; mod b;",
            "a": "use crate::b::B; pub struct A(B);",
            "b": "pub struct B; fn f(_: super::a::A) {}",
        },
        ["a.rs -> b.rs: B", "b.rs -> a.rs: A"],
    ),
    "through a re-export": (
        {
            "lib": "pub mod room; mod user;",
            "room/mod": "mod door; mod wall; pub use door::Door; pub(crate) use wall::*;",
            "room/door": "use super::Wall; pub struct Door(Wall);",
            "room/wall": "use crate::room::Door; pub struct Wall(Option<Box<Door>>);",
            "user": "use crate::room::Door;",
        },
        ["room/door.rs -> room/wall.rs: Wall", "room/wall.rs -> room/door.rs: Door"],
    ),
    "tests, comments and texts do not count": (
        {
            "lib": "mod a; mod b;",
            "a": "use super::b::B; pub struct A(B); impl A { #[cfg(test)] fn f() {} const N: u8 = b'\"'; }",
            "b": """
                // use super::a::A;
                /* use super::a::A; */
                pub struct B; const TEXT: &str = "crate::a::A"; const RAW: &str = r#"" super::a::A ""#;
                #[cfg(test)] use super::a::A;
                impl B { #[cfg(test)] fn f<'a>(_: &'a super::a::A) -> crate::a::A { crate::a::A } }
                #[cfg(all(test, not(feature = "loom")))]
                #[allow(dead_code)]
                mod tests { use crate::a::A; }
            """,
        },
        [],
    ),
}


@pytest.mark.parametrize(("files", "found"), TREES.values(), ids=TREES)
def test_circles_of_files_that_use_each_other_are_found(
    tmp_path: Path, files: dict[str, str], found: list[str]
) -> None:
    for name, text in files.items():
        path = tmp_path / f"{name}.rs"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines = [f"  {line}" for line in found]
    names = {line.split()[0] for line in found}
    expected = ["\n".join([f"{len(names)} files use each other:", *lines])] if found else []
    assert circles_of(tmp_path / "lib.rs") == expected
