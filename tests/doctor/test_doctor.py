"""What is found on machines that lack what others have."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from softs_fast.cli import main
from softs_fast.doctor import advise, look, machine

#: A container with 64 MiB of shared memory, no /proc, nothing to write to, and no network; then the command.
BARE = """mount -t tmpfs -o size=64m none /dev/shm && mount -t tmpfs none /proc &&
mount -o remount,bind,ro / && exec "$@" """


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_files_of_the_kernel_are_read(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup/memory.max", "4294967296\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path / "sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n")
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    os.symlink("pid:[7]", tmp_path / "proc/self/ns/pid")
    (tmp_path / "dev/shm").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    found = look(tmp_path)
    assert (found.memory_limit, found.processor_quota, found.huge_pages) == (1 << 32, 1.5, "advise")
    assert (found.pid_namespace, found.n_gpus) == ("pid:[7]", 2)
    space = os.statvfs(tmp_path)
    assert found.shm_bytes is not None
    assert found.shm_bytes[0] == space.f_blocks * space.f_frsize
    assert found.is_shm_writable
    assert found.loopback_error is None
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", "max 100000\n")
    found = look(tmp_path)
    assert (found.memory_limit, found.processor_quota) == (None, None)


def test_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc, no /dev/shm, no folder for temporary files, and a user without a name."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)

    def no_folder() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    found = look(tmp_path / "nothing")
    lacking = (found.user, found.home, found.temporary_folder, found.shm_bytes, found.pid_namespace)
    assert lacking == (None,) * 5
    levels = {one.subject: one.level for one in advise(found)}
    assert levels["shared memory"] == levels["temporary folder"] == "problem"
    assert levels["user"] == levels["home"] == levels["processes"] == "note"


def test_the_command_prints_a_line_for_each_thing(capsys: pytest.CaptureFixture[str]) -> None:
    findings = advise(look())
    try:
        status = main(["doctor"])
    except SystemExit as ended:
        status = int(str(ended.code))
    out = capsys.readouterr().out
    assert status == int(any(found.level == "problem" for found in findings))
    begins = [line for line in out.splitlines() if not line.startswith(" ")]
    assert [line.partition(":")[0].split(maxsplit=1) for line in begins] == [
        [found.level, found.subject] for found in findings
    ]


def test_a_process_that_may_do_little_is_told_so() -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    command = [sys.executable, "-m", "softs_fast", "doctor"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "400"}
    ended = subprocess.run(
        command, env=environment, preexec_fn=limited, capture_output=True, text=True, timeout=40
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "problem  shared memory: this process may write files of 1 MiB at most" in ended.stdout
    assert "problem  open files: 64 at most" in ended.stdout


def test_a_container_that_has_next_to_nothing() -> None:
    apart = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c", BARE, "sh"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("no unprivileged namespaces on this machine")
    command = [*apart, sys.executable, "-m", "softs_fast", "doctor"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "400", "HOME": "/nowhere"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=40)
    assert (ended.returncode, ended.stderr) == (1, "")
    said = dict(line[9:].split(": ", 1) for line in ended.stdout.splitlines())
    assert said.keys() == {found.subject for found in advise(look())}
    assert said["shared memory"].startswith("64 MiB of 64 MiB free")
    assert "dead peers are taken for living ones" in said["processes"]
    assert "no server can be reached at 127.0.0.1 (Network is unreachable)" in said["loopback"]
    assert "must run on this machine" in said["other hosts"]
    assert "set HOME" in said["home"]


def test_an_address_at_which_something_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        monkeypatch.setattr(machine, "_LISTEN", {"paramserver run": (host, port)})
        assert look().taken == {"paramserver run": f"{host}:{port}"}
    assert look().taken == {}


@pytest.mark.parametrize(("name", "address"), machine._LISTEN.items())
def test_addresses_are_the_defaults_of_commands(
    name: str, address: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert "{}:{}".format(*address) in capsys.readouterr().out
