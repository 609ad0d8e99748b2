"""What a machine, a container or a user has, as far as softs-fast depends on it; None for what cannot be read."""

from __future__ import annotations

import contextlib
import errno
import getpass
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .. import NATIVE_ERROR, __version__

__all__ = ["Machine", "look"]

#: Packages on which rooms depend that need more than the native modules.
_PACKAGES = ("torch", "grpcio", "cryptography", "ray")
#: Where servers listen by default, by the command that starts one.
_LISTEN = {"coordinator run": ("127.0.0.1", 29401), "paramserver run": ("127.0.0.1", 8000)}
#: Addresses of examples (RFC 5737, RFC 3849): a socket of datagrams that is connected to one looks a route up, and sends nothing.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


@dataclass(frozen=True)
class Machine:
    """What was found.

    Attributes:
        system: Name and release of the operating system.
        python: Version of Python.
        version: Version of softs-fast.
        native_error: Why the native modules cannot be loaded; None: they can.
        packages: Versions of packages; those that are not installed are missing.
        cuda_build: What the native modules were built with; None: without CUDA.
        n_gpus: Devices of NVIDIA's driver.
        shm_bytes: Size of /dev/shm and what is free of it, bytes; None: there is none.
        is_shm_writable: Whether this user can make a file there.
        memory_limit: Most memory of this container, bytes; None: no limit.
        file_limit: Longest file that this process may write, bytes; None: no limit.
        descriptors: Files that this process may have open, and how far it may raise that itself; None: no limit.
        temporary_folder: Folder for temporary files; None: there is none that can be written.
        user: Name of this user; None: the user's number has no name.
        home: Home folder; None: there is none, or this user cannot write there.
        processors: Processors that this process may use.
        processor_quota: Processors' worth of time for this container; None: no limit.
        omp_threads: Value of OMP_NUM_THREADS; None: not set.
        pid_namespace: Namespace of process numbers; None: it cannot be read.
        huge_pages: Kernel's rule for huge pages in shared memory, such as "advise".
        loopback_error: Why a server on loopback cannot be reached; None: it can.
        has_route: Whether there is a route to other machines.
        congestion_controls: Congestion controls of TCP that each process may choose; empty: not known.
        taken: Commands for which something listens already at the default address, with that address.
    """

    system: str
    python: str
    version: str
    native_error: str | None
    packages: Mapping[str, str]
    cuda_build: str | None
    n_gpus: int
    shm_bytes: tuple[int, int] | None
    is_shm_writable: bool
    memory_limit: int | None
    file_limit: int | None
    descriptors: tuple[int | None, int | None] | None
    temporary_folder: str | None
    user: str | None
    home: str | None
    processors: int
    processor_quota: float | None
    omp_threads: str | None
    pid_namespace: str | None
    huge_pages: str | None
    loopback_error: str | None
    has_route: bool
    congestion_controls: tuple[str, ...]
    taken: Mapping[str, str]


def look(root: Path = Path("/")) -> Machine:
    """Return what this machine has; changes nothing.

    Args:
        root: Where the files of the kernel and the devices are.
    """
    shm, home = root / "dev/shm", Path(os.path.expanduser("~"))
    limits = {name: _limit(name) for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE")}
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        version=__version__,
        native_error=None if NATIVE_ERROR is None else str(NATIVE_ERROR),
        packages=_packages(),
        cuda_build=_cuda_build(),
        n_gpus=len(list((root / "dev").glob("nvidia[0-9]*"))),
        shm_bytes=_space(shm),
        is_shm_writable=_is_writable(shm),
        memory_limit=_number(_text(root / "sys/fs/cgroup/memory.max")),
        file_limit=(limits["RLIMIT_FSIZE"] or (None,))[0],
        descriptors=limits["RLIMIT_NOFILE"],
        temporary_folder=_temporary_folder(),
        user=_user(),
        home=str(home) if home.is_absolute() and _is_writable(home) else None,
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        processor_quota=_quota(_text(root / "sys/fs/cgroup/cpu.max")),
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        pid_namespace=_link(root / "proc/self/ns/pid"),
        huge_pages=_chosen(_text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        loopback_error=_loopback_error(),
        has_route=any(_has_route(family, host) for family, host in _ELSEWHERE),
        congestion_controls=tuple(
            (_text(root / "proc/sys/net/ipv4/tcp_allowed_congestion_control") or "").split()
        ),
        taken={name: "{}:{}".format(*at) for name, at in _LISTEN.items() if _is_taken(at)},
    )


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cuda_build() -> str | None:
    if NATIVE_ERROR is not None:
        return None
    from .. import _kernels

    built = _kernels.cuda_build()
    return None if built is None else " ".join(map(str, built))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _quota(text: str | None) -> float | None:
    """Return the share of a text such as "150000 100000"; "max 100000" is no limit."""
    given, _, period = (text or "").partition(" ")
    return int(given) / int(period) if given.isdecimal() and period.isdecimal() and int(period) else None


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets."""
    return text.partition("[")[2].partition("]")[0] or None if text else None


def _space(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _is_writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _limit(name: str) -> tuple[int | None, int | None] | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(getattr(resource, name))
    )
    return soft, hard


def _temporary_folder() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def _loopback_error() -> str | None:
    try:
        # To bind is not enough: where the interface is down, that works.
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=1.0),
        ):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _has_route(family: int, host: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asker:
            asker.connect((host, 9))
            return True
    except OSError:
        return False


def _is_taken(address: tuple[str, int]) -> bool:
    try:
        with socket.create_server(address):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE
