"""A record inside a folder, or beside a file, that vouches for files by length and digest."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import ConfigError, DamagedError
from .sealed import read_sealed, write_sealed

__all__ = ["MANIFEST", "Facts", "facts_of", "verify_manifest", "write_manifest"]

#: Name of the record in its folder.
MANIFEST = "manifest"
_KIND = "manifest"
_MOST_BYTES = 1 << 28
#: Files that are hashed at a time; hashing releases the GIL.
_HASHES = 4
#: Files that an error names.
_MOST_NAMED = 5
#: Length and SHA-256 of files, by their names in a folder.
Facts = Mapping[str, Sequence[int | str]]


def facts_of(folder: Path, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return length and SHA-256 of files of a folder, for a process that writes its manifest.

    Raises:
        OSError: A file cannot be read.
    """
    names = list(names)
    with ThreadPoolExecutor(_HASHES, "softs-digest") as threads:
        return dict(zip(names, threads.map(lambda name: _fact(folder / name), names), strict=True))


def write_manifest(folder: Path, parts: Collection[Path] = (), known: Facts | None = None) -> None:
    """Write the record of a folder, after all its other files; an older record is replaced.

    Args:
        folder: The folder; files in folders below it count too. Or a single file, which has its record beside it.
        parts: Folders below it with records of their own. Only these records count here; verify the parts too.
        known: What other processes have found of files with `facts_of`; these are not read again.

    Raises:
        ConfigError: Something in the folder is neither a plain file nor a folder, such as a link.
        OSError: A file cannot be read, or is not there though it is known, or the record cannot be written.
    """
    if not folder.is_dir():
        write_sealed(_beside(folder), _KIND, json.dumps(facts_of(folder.parent, [folder.name])).encode())
        return
    names = []
    own = tuple(f"{part.relative_to(folder)}/" for part in parts)
    for name, mode in _files(folder):
        if name.startswith(own) and name not in [f"{part}{MANIFEST}" for part in own]:
            continue
        if not stat.S_ISREG(mode):
            raise ConfigError(
                f"{folder / name} is {stat.filemode(mode)}, expected a plain file: a save holds its own files"
            )
        names.append(name)
    known = known or {}
    if lacking := sorted(known.keys() - set(names)):
        raise FileNotFoundError(f"{folder} has no {lacking[0]}, which another process has written")
    read = facts_of(folder, (name for name in names if name not in known))
    facts = {name: known[name] if name in known else read[name] for name in names}
    write_sealed(folder / MANIFEST, _KIND, json.dumps(facts, sort_keys=True, indent=0).encode())


def verify_manifest(folder: Path, what: str, part: tuple[int, int] = (0, 1)) -> frozenset[str]:
    """Check every file that the record of a folder names; files that were added since do not matter.

    Args:
        folder: The folder, or a single file.
        what: Name of it for errors, such as ``save /data/step-3``.
        part: Number of this process and number of processes that share the work: each one checks some of the files.

    Returns:
        Names of the files that the record vouches for, relative to the folder.

    Raises:
        DamagedError: The record is missing or damaged, or files are missing, cut or altered; the text names them.
        OSError: A file cannot be read.
    """
    is_folder = folder.is_dir()
    record = folder / MANIFEST if is_folder else _beside(folder)
    if not (is_folder or record.exists() or folder.exists()):
        raise DamagedError(f"{what} is missing: {folder} does not exist; restore it, or use an older one")
    try:
        data = read_sealed(
            record, _KIND, most_bytes=_MOST_BYTES, what=f"the manifest of {what}", private=False
        )
        facts = {name: (int(size), str(digest)) for name, (size, digest) in json.loads(data).items()}
    except FileNotFoundError:
        raise DamagedError(
            f"{what} has no manifest {record}, so its files cannot be verified; use another one"
        ) from None
    except DamagedError:
        raise
    except ConfigError as error:
        raise DamagedError(f"{error}; use another one") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"the manifest of {what} is of another version: {error}") from None
    if is_folder:
        plain = {name for name, mode in _files(folder) if stat.S_ISREG(mode)}
    else:
        plain = {folder.name} if folder.exists() and stat.S_ISREG(os.lstat(folder).st_mode) else set()
        folder = folder.parent
    wrong = [f"{name!r} is missing" for name in sorted(facts) if name not in plain]
    kept: list[str] = []
    for name in sorted(facts.keys() & plain):
        size, expected = os.lstat(folder / name).st_size, facts[name][0]
        if size == expected:
            kept.append(name)
        else:
            wrong.append(f"{name!r} has {size:,} of {expected:,} bytes")
    # What is cut needs no hash: a large save that lacks a file is refused at once.
    if not wrong:
        kept = kept[part[0] :: part[1]]
        found = facts_of(folder, kept)
        wrong = [f"{name!r} was altered" for name in kept if found[name] != facts[name]]
    if wrong:
        more = f", and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise DamagedError(
            f"{what} is damaged: {', '.join(wrong[:_MOST_NAMED])}{more}; restore it, or use an older one"
        )
    return frozenset(facts)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.{MANIFEST}")


def _files(folder: Path) -> list[tuple[str, int]]:
    """Return names and modes of all that a record is about: all but folders and the record itself."""
    return [(name, mode) for name, mode in _walk(folder) if name != MANIFEST]


def _walk(folder: Path) -> list[tuple[str, int]]:
    """Return names and modes of all but folders; links are not followed."""
    found: list[tuple[str, int]] = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            found += [(f"{entry.name}/{name}", mode) for name, mode in _walk(Path(entry.path))]
        else:
            found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
    return found


def _fact(path: Path) -> tuple[int, str]:
    """Return length and SHA-256 of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
