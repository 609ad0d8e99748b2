"""The page on security names each place that listens, shares memory or has torch listen: a new one needs its row."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "security.md"
#: A row of the table, by its cells: what listens, the files where it does, which peers may connect, what is encrypted, off
#: loopback.
ROW = re.compile(r"^\|" + r"([^|\n]*)\|" * 5 + r"(?:[^|\n]*\|)?$", re.MULTILINE)
#: What makes a process reachable for others, by the suffix of a file: sockets, servers of libraries, memory with a name.
OPENS = {
    ".py": (
        r"\.(?:listen|create_server|start_server|start_unix_server|add_(?:in)?secure_port)\("
        r"|\b(?:TCPStore|ProcessGroupGloo|init_process_group|new_group|SharedMemory)\(|HTTPServer\):|O_TMPFILE"
        r"|(?<!def )\blisten\("
    ),
    ".rs": (
        r"\b(?:Listener|TcpListener|UnixListener|UdpSocket|UnixDatagram)::bind\(|Streams::listen\(|net::listen\(|OFlags::TMPFILE"
    ),
    ".cpp": r"\b(?:bind|listen|shm_open)\(|O_TMPFILE",
    ".cu": r"IpcGet\w+Handle\(",
}
FOLDERS = ("python/softs_fast", "rust/net/src", "rust/py/src", "rust/shm/src", "csrc")


def code(path: Path) -> str:
    """What runs of a file: no comment, no docstring, no tests behind the code of Rust."""
    text = path.read_text()
    if path.suffix == ".py":
        return re.sub(r'"""(?:.|\n)*?"""|#.*', "", text)
    return re.sub(r"//.*", "", text.partition("#[cfg(test)]")[0])


def opens(root: Path) -> set[str]:
    """The files below a folder that make their process reachable."""
    found = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            is_test = "standin" in path.parts or "tests" in path.parts or path.stem.endswith("tests")
            if path.suffix in OPENS and not is_test and re.search(OPENS[path.suffix], code(path)):
                found.add(path.relative_to(root).as_posix())
    return found


def rows(section: str = "Each listener") -> list[list[str]]:
    """The table of a section, without its head."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in row] for row in ROW.findall(text)][2:]


def listed() -> set[str]:
    """The files of the table."""
    return {file for row in rows() for file in re.findall(r"`([^`]+)`", row[1])}


def test_each_place_has_a_row_and_each_row_a_place() -> None:
    assert opens(REPOSITORY) - listed() == set(), "docs/security.md has no row for these"
    assert listed() - opens(REPOSITORY) == set(), "nothing listens in these"


def test_no_cell_is_empty() -> None:
    assert len(rows()) >= 12
    assert all(all(row) for row in rows() + rows("Rights by proof"))


class Call:
    """A call to a coordinator, of a peer with a certificate."""

    def __init__(self, name: str) -> None:
        self.name = name

    def peer(self) -> str:
        return "ipv4:127.0.0.1:40000"

    def auth_context(self) -> dict[str, list[bytes]]:
        # The common name counts only without a URI.
        return {"peer_uri": [self.name.encode()], "x509_common_name": [b"admin"]}


PEM = {"cert": Path("c"), "key": Path("k"), "ca": Path("a")}


@pytest.mark.parametrize(
    ("proof", "files", "name"),
    [
        ("own user, on loopback, without files", {}, ""),
        ("token file", {"token_file": Path("t")}, ""),
        ("certificate of the CA without a role, or with `admin`", PEM, "w0"),
        ("certificate of the CA without a role, or with `admin`", PEM, "softs://job/admin/a"),
        ("the same, with a name of `--admin`", PEM, "admin"),
        ("role `student`", PEM, "softs://job/student/a"),
        ("role `teacher`", PEM, "softs://job/teacher"),
        ("role `rank`", PEM, "softs://job/rank/0"),
        ("any other role", PEM, "softs://job/watch/a"),
    ],
)
def test_a_coordinator_gives_the_rights_of_the_table(
    monkeypatch: pytest.MonkeyPatch, proof: str, files: dict[str, Path], name: str
) -> None:
    pytest.importorskip("grpc", reason="needs the extra grpc")
    from softs_fast.coordination import ServerCredentials
    from softs_fast.coordination.server import guard

    monkeypatch.setattr("softs_fast._core.is_ours", lambda *_: True)
    [said] = [row[2] for row in rows("Rights by proof") if row[0] == proof]
    found = []
    one = guard.Guard(ServerCredentials(**files), 1)
    with suppress(guard.Denied):
        found.append("member by any id" if one.worker(Call(name)) is None else "member by its own name")
    try:
        one.administrator(Call(name))
        found.append("administrator")
    except guard.Denied:
        found.append("status")
    assert ", ".join(found) == said


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("python/softs_fast/a.py", "sock.listen(8)\n", True),
        ("python/softs_fast/a.py", "server.add_insecure_port(target)\n", True),
        ("python/softs_fast/a.py", "loop.create_server(make)\n", True),
        ("python/softs_fast/a.py", "class _Server(HTTPServer):\n", True),
        ("python/softs_fast/a.py", "# sock.listen(8)\n", False),
        ("rust/net/src/a.rs", "let listener = TcpListener::bind(address)?;\n", True),
        (
            "rust/net/src/a.rs",
            "mod a;\n#[cfg(test)]\nmod tests { fn a() { TcpListener::bind(x); } }\n",
            False,
        ),
        ("csrc/a.cpp", "::bind(fd, address, size);\n", True),
        ("csrc/a.cu", "cudaIpcGetMemHandle(&handle, address);\n", True),
        ("python/softs_fast/a.py", 'group = dist.new_group(backend="gloo")\n', True),
    ],
)
def test_what_counts_as_a_place(tmp_path: Path, name: str, text: str, is_found: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert opens(tmp_path) == ({name} if is_found else set())
