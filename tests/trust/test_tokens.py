"""Files of tokens: which are read, what they hold when they change, and that no text shows a token."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from softs_fast.errors import ConfigError
from softs_fast.trust import TokenFile, new_token, write_token

ONE, TWO = "0123456789abcdef0123456789abcdef", "x" * 22


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"w0 {ONE}\n")
    path.chmod(0o600)
    return path


def test_a_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = write_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert TokenFile(path).own() == token != new_token()
    with pytest.raises(ConfigError, match=f"cannot make the token file {path}: File exists"):
        write_token(path)


def test_lines_with_names_and_without(path: Path) -> None:
    path.write_text(f"# of the job\n\n{ONE}\n  w1   {TWO}  \n")
    file = TokenFile(path)
    assert file.own() == ONE
    assert [file.name_of(token) for token in (ONE, TWO, "w1", None)] == [None, "w1", None, None]
    path.write_text("# none is left\n")
    assert file.name_of(TWO) is None
    with pytest.raises(ConfigError, match="has no token"):
        file.own()


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        (f"w0 {ONE} {TWO}\n", False, "line 1: expected TOKEN or NAME TOKEN, got 3 words"),
        (f"\n{ONE}\n", True, "line 2: expected NAME TOKEN, got 1 words"),
        (f"w0 {ONE[:21]}\n", True, "line 1: a token has 22 to 512 visible ASCII characters"),
        (f"{ONE}\x07\n", False, "line 1: a token has 22 to 512"),
        (ONE * 17, False, "line 1: a token has 22 to 512"),
        (f"w0 {ONE}\n{TWO} {ONE}\n", True, "line 2: an earlier line has this token"),
        (f"{ONE}\udcff", False, "line 1: a token has 22 to 512"),
        (ONE * (1 << 15) + "x", False, "too long: expected at most 1,048,576 bytes"),
    ],
)
def test_files_of_tokens_that_cannot_be(path: Path, text: str, named: bool, message: str) -> None:
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message) as raised:
        TokenFile(path, named=named)
    assert not any(token[:20] in f"{raised.value!r} {raised.value.__context__!r}" for token in (ONE, TWO))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620])
def test_a_secret_that_others_can_read_is_not_used(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{path} must be a file of this user with mode 0600"):
        TokenFile(path)
    with pytest.raises(ConfigError, match=r"cannot read .*none: No such file"):
        TokenFile(path.with_name("none"))


def test_a_link_is_followed_to_a_file_that_is_checked(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    file = TokenFile(link)
    assert file.own() == ONE
    # As a mounted secret is replaced.
    path.with_name("next").write_text(TWO)
    path.with_name("next").chmod(0o600)
    link.unlink()
    link.symlink_to("next")
    assert file.own() == TWO
    path.with_name("next").chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0600"):
        TokenFile(link)


def test_a_file_that_turned_invalid_leaves_the_tokens_in_force(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TokenFile(path, named=True)
    for text in (f"w0 {TWO} {TWO}", f"{TWO}\n", ""):
        path.write_text(text)
        path.chmod(0o600 if text else 0o644)
        assert file.name_of(ONE) == "w0"
        assert file.name_of(TWO) is None
    path.unlink()
    assert file.name_of(ONE) == "w0"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 4
    assert all(line.startswith(f"{path} stays in force as it was: ") for line in told)
    path.write_text(f"w1 {TWO}\n")
    path.chmod(0o600)
    assert [file.name_of(ONE), file.name_of(TWO)] == [None, "w1"]
    assert not any(secret in f"{caplog.text} {file!r} {vars(file)!r}" for secret in (ONE, TWO))
