"""Token files for tests, and what processes with them show each other."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from softs_fast.trust import Der, TlsFiles


def token_file(path: Path, *letters: str) -> Path:
    """Write a file of the tokens that are these letters, the new one first; replace it at once."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{letter * 32}\n" for letter in letters))
    new.chmod(0o600)
    return new.replace(path)


def credentials(*letters: str) -> Der:
    """Return what a process shows others that has a file of these tokens."""
    with TemporaryDirectory() as folder:
        found = TlsFiles(token_file=token_file(Path(folder, "token"), *letters)).der()
    assert found is not None
    return found
