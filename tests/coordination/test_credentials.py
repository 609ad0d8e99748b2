"""Files of credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from softs_fast.coordination.credentials import (
    ClientCredentials,
    ServerCredentials,
    read_token,
    read_tokens,
)
from softs_fast.errors import ConfigError

GOOD = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"w0 {GOOD}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620])
def test_a_secret_that_others_can_read_is_not_used(secret: Path, mode: int) -> None:
    assert list(read_tokens(secret).values()) == ["w0"]
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {secret}"):
        read_tokens(secret)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0\n", 'line 1: has 1 words; need "NAME TOKEN"'),
        ("w0 short\n", "128 random bits"),
        (f"w0 {GOOD}\nw1 {GOOD}\n", "line 2: w1 has the token of w0"),
        (f"w0 {GOOD}\x07\n", "characters of ASCII"),
    ],
)
def test_lines_of_tokens_that_cannot_be(secret: Path, text: str, message: str) -> None:
    secret.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_tokens(secret)


def test_a_file_that_is_no_token(secret: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: a token has"):
        read_token(secret)
    secret.write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigError, match="is no text"):
        read_token(secret)
    secret.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="more than"):
        read_token(secret)
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_token(tmp_path / "none")


def test_files_that_belong_together() -> None:
    one = Path("x")
    for make in (
        lambda: ServerCredentials(cert=one),
        lambda: ServerCredentials(ca=one),
        lambda: ClientCredentials(ca=one, key=one),
        lambda: ClientCredentials(cert=one, key=one),
    ):
        with pytest.raises(ConfigError, match="give"):
            make()
