"""Token files for tests."""

from __future__ import annotations

from pathlib import Path


def token_file(path: Path, *letters: str) -> Path:
    """Write a file of the tokens that are these letters, the new one first; replace it at once."""
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{letter * 32}\n" for letter in letters))
    new.chmod(0o600)
    return new.replace(path)
