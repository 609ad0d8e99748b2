"""What follows from what a machine has, in words: pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from .machine import Machine

__all__ = ["Finding", "advise"]

_MIB = 1 << 20
_GIB = 1 << 30
#: Below these sizes of shared memory a first program fails, or a real one will, bytes.
_TOO_SMALL, _SMALL = 128 * _MIB, 2 * _GIB
#: Descriptors of a server with some thousand peers.
_DESCRIPTORS = 4096
#: The longest folder in which the socket of a fleet has its place, bytes; in a longer one /tmp is used.
_LONGEST_FOLDER = 80
#: The first version of torch that takes a backend in Python.
_TORCH_WITH_BACKENDS = (2, 15)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        level: "ok"; "note" where something is slower or missing; "problem" where something will fail.
        subject: What was looked at.
        text: What was found, what follows, and what to do.
    """

    level: Literal["ok", "note", "problem"]
    subject: str
    text: str


def advise(machine: Machine) -> list[Finding]:
    """Return one finding for each thing that was looked at, in the order of the report."""
    return [
        _modules(machine),
        _torch(machine),
        _hosts(machine),
        _shared_memory(machine),
        _huge_pages(machine),
        _descriptors(machine),
        _temporary_folder(machine),
        _user(machine),
        _home(machine),
        _processors(machine),
        _processes(machine),
        _loopback(machine),
        _ports(machine),
        _other_hosts(machine),
        _gpus(machine),
    ]


def _modules(machine: Machine) -> Finding:
    where = f"softs-fast {machine.version}, Python {machine.python}, {machine.system}"
    if machine.native_error is not None:
        return Finding(
            "problem", "modules", f"{where}: native modules cannot be loaded: {machine.native_error}"
        )
    return Finding("ok", "modules", f"{where}, native modules are here")


def _torch(machine: Machine) -> Finding:
    version = machine.packages.get("torch")
    if version is None:
        text = (
            "is not installed: loaders, collectives, flows and jobs need it; pip install 'softs-fast[torch]'"
        )
        return Finding("note", "torch", text)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal())
    if numbers < _TORCH_WITH_BACKENDS:
        text = f'{version}: the backend "softs" of torch.distributed needs 2.15; ShmStrategy and ddp_hook work with this version'
        return Finding("note", "torch", text)
    return Finding("ok", "torch", version)


def _hosts(machine: Machine) -> Finding:
    missing = [name for name in ("grpcio", "cryptography") if name not in machine.packages]
    if missing:
        text = f"{' and '.join(missing)} missing: coordinators need them; pip install 'softs-fast[grpc]'"
        return Finding("note", "coordinator", text)
    return Finding("ok", "coordinator", f"grpcio {machine.packages['grpcio']}")


def _shared_memory(machine: Machine) -> Finding:
    if machine.shm_bytes is None:
        text = "/dev/shm is missing: only TCPMedium and FilesystemMedium can carry samples; mount a tmpfs at /dev/shm"
        return Finding("problem", "shared memory", text)
    if not machine.is_shm_writable:
        text = "this user cannot write to /dev/shm: only TCPMedium can carry samples; as root: chmod 1777 /dev/shm"
        return Finding("problem", "shared memory", text)
    if machine.file_limit is not None and machine.file_limit < machine.shm_bytes[1]:
        text = f"this process may write files of {_size(machine.file_limit)} at most: a segment is a file; ulimit -f unlimited"
        return Finding("problem" if machine.file_limit < _TOO_SMALL else "note", "shared memory", text)
    total, free = machine.shm_bytes
    found = f"{_size(free)} of {_size(total)} free in /dev/shm"
    if machine.memory_limit is not None:
        found += f", which counts for the {_size(machine.memory_limit)} of memory of this container"
    if free >= _SMALL:
        return Finding("ok", "shared memory", found)
    remedy = (
        "slots of clients, rows of flows and buckets of gradients must fit, or their program ends with an error; start "
        "the container with docker run --shm-size=8g (or --ipc=host), or as root: mount -o remount,size=8g /dev/shm"
    )
    return Finding("problem" if free < _TOO_SMALL else "note", "shared memory", f"{found}: {remedy}")


def _huge_pages(machine: Machine) -> Finding:
    rule = machine.huge_pages
    if rule in ("always", "within_size", "advise", "force"):
        return Finding("ok", "huge pages", f"{rule}: buckets of gradients and rows use them")
    found = "not known" if rule is None else rule
    text = (
        f"{found}: buckets of gradients and rows have pages of 4 KiB, so the first touch of each takes longer; as root: "
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
    )
    return Finding("note", "huge pages", text)


def _descriptors(machine: Machine) -> Finding:
    if machine.descriptors is None:
        return Finding("ok", "open files", "this system has no limit that can be asked for")
    most = machine.descriptors[1]
    if most is None or most >= _DESCRIPTORS:
        return Finding(
            "ok", "open files", f"servers may raise their limit to {'any number' if most is None else most}"
        )
    text = f"{most} at most: a broker, coordinator or parameter server takes one for each peer; raise it with ulimit -Hn"
    return Finding("problem" if most < 256 else "note", "open files", text)


def _temporary_folder(machine: Machine) -> Finding:
    folder = machine.temporary_folder
    if folder is None:
        text = (
            "no folder for temporary files is writable; fleets keep their sockets there: set TMPDIR to a folder of this "
            "user, or start the container with docker run --tmpfs /tmp"
        )
        return Finding("problem", "temporary folder", text)
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        text = f"{folder} is too long for the path of a socket, so fleets use /tmp; set TMPDIR to a shorter path if /tmp is unfit"
        return Finding("note", "temporary folder", text)
    return Finding("ok", "temporary folder", folder)


def _user(machine: Machine) -> Finding:
    if machine.user is None:
        text = (
            "the user id has no name, and torch asks for one when it compiles or caches; set USER to any word"
        )
        return Finding("note", "user", text)
    return Finding("ok", "user", machine.user)


def _home(machine: Machine) -> Finding:
    if machine.home is None:
        text = (
            "there is none that this user can write to: teachers of Hugging Face's models have no cache, and download at "
            "each start or fail; set HOME or HF_HOME to a folder of this user"
        )
        return Finding("note", "home", text)
    return Finding("ok", "home", f"{machine.home}, where downloaded models are cached")


def _processors(machine: Machine) -> Finding:
    quota, given = machine.processor_quota, machine.omp_threads
    found = f"{machine.processors}"
    if quota is not None and quota < machine.processors:
        text = (
            f"{found}, but time of {quota:g} for all processes of this container: threads beyond that wait for each "
            "other; set OMP_NUM_THREADS to what each process may have"
        )
        return Finding(
            "ok" if given else "note", "processors", text if not given else f"{found}, time of {quota:g}"
        )
    if given:
        return Finding("ok", "processors", f"{found}, OMP_NUM_THREADS={given} for each process")
    return Finding("ok", "processors", f"{found}, shared by the processes of a fleet or a flow")


def _processes(machine: Machine) -> Finding:
    if machine.pid_namespace is None:
        text = (
            "/proc/self/ns cannot be read: dead peers are taken for living ones until a time-out, and what they leave in "
            "/dev/shm stays; mount /proc"
        )
        return Finding("note", "processes", text)
    text = f"{machine.pid_namespace}: containers share memory and ranks only within one such namespace (docker run --pid, --ipc)"
    return Finding("ok", "processes", text)


def _loopback(machine: Machine) -> Finding:
    if machine.loopback_error is not None:
        text = (
            f"no server can be reached at 127.0.0.1 ({machine.loopback_error}): coordinators, stars and torch's groups need "
            "it; as root: ip link set lo up"
        )
        return Finding("problem", "loopback", text)
    return Finding("ok", "loopback", "servers of this machine can be reached")


def _ports(machine: Machine) -> Finding:
    if machine.taken:
        texts = [f"softs-fast {name} at {address}" for name, address in machine.taken.items()]
        text = f"something listens already at the default of {', of '.join(texts)}: give it another address with --listen"
        return Finding("note", "ports", text)
    return Finding("ok", "ports", "those at which servers listen by default are free")


def _other_hosts(machine: Machine) -> Finding:
    if not machine.has_route:
        text = (
            "there is no route to any: teachers, ranks and workers must run on this machine, and nothing can be downloaded; "
            "connect it to a network (docker run --network)"
        )
        return Finding("note", "other hosts", text)
    if machine.congestion_controls and "bbr" not in machine.congestion_controls:
        allowed = " ".join((*machine.congestion_controls, "bbr"))
        text = (
            "there is a route; over lines that lose packets connections are many times as fast if the kernel allows bbr, as "
            f"root of the machine: modprobe tcp_bbr; sysctl -w net.ipv4.tcp_allowed_congestion_control='{allowed}'"
        )
        return Finding("note", "other hosts", text)
    return Finding("ok", "other hosts", "there is a route")


def _gpus(machine: Machine) -> Finding:
    if machine.n_gpus == 0:
        return Finding("ok", "GPUs", "none; everything but the CUDA side works without one")
    found = f"{machine.n_gpus}"
    if machine.cuda_build is None:
        text = (
            f"{found}, but softs-fast was built without CUDA: slots and all-reduce on devices are not available; build it "
            "with SOFTS_CUDA=pip"
        )
        return Finding("problem", "GPUs", text)
    if machine.packages.get("torch", "").endswith("+cpu"):
        text = (
            f"{found}, but torch {machine.packages['torch']} is a build for processors; install one for CUDA"
        )
        return Finding("problem", "GPUs", text)
    return Finding(
        "ok",
        "GPUs",
        f"{found}, softs-fast is built for {machine.cuda_build}; softs-fast gpu checks and measures them",
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f} MiB"
