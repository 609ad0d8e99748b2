"""Files of tokens: which are read, what they hold when they are replaced, and that no text shows a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from softs_fast.errors import ConfigError
from softs_fast.trust import new_token, read_tokens, rotate_token, write_token

ONE, TWO = "0123456789abcdef0123456789abcdef", "x" * 22


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{ONE}\n")
    path.chmod(0o600)
    return path


def test_a_token_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = write_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_tokens(path) == [token]
    assert token != new_token()
    with pytest.raises(ConfigError, match=f"cannot make the token file {path}: File exists"):
        write_token(path)


def test_comments_and_empty_lines_do_not_count(path: Path) -> None:
    path.write_text(f"# of the job\n\n{ONE}\n  {TWO}  \n")
    assert read_tokens(path) == [ONE, TWO]
    path.write_text("# none is left\n")
    with pytest.raises(ConfigError, match="has no token; make one: softs-fast keys new FILE"):
        read_tokens(path)


def test_a_new_token_comes_before_the_present_one(path: Path) -> None:
    (path.parent / "link").symlink_to(path.name)
    for name in ("token", "link"):
        before = read_tokens(path)[0]
        path.write_text(f"{before}\n")
        rotate_token(path.with_name(name))
        new, old = read_tokens(path)
        assert old == before != new
        assert path.stat().st_mode & 0o777 == 0o600
    assert ONE not in path.read_text()
    assert (path.parent / "link").is_symlink()
    with pytest.raises(ConfigError, match="has two tokens, of which hosts may have the second one alone"):
        rotate_token(path)
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="mode 0600"):
        rotate_token(path)
    assert path.read_text().split() == [new, old]


def test_a_file_with_a_new_token_has_the_owner_and_the_mode_of_the_present_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only root can have one of another user, and one that a group may read.
    kept: list[tuple[int, ...]] = []
    monkeypatch.setattr("os.fchown", lambda _, *owner: kept.append(owner))
    monkeypatch.setattr("os.fchmod", lambda _, *mode: kept.append(mode))
    rotate_token(path)
    found = path.stat()
    assert kept == [(found.st_uid, found.st_gid), (0o600,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"w0 {ONE}\n", "line 1: invalid token, expected 22 to 512 visible ASCII characters without spaces"),
        (f"\n{ONE[:21]}\n", "line 2: invalid token, expected 22 to 512"),
        (f"{ONE}\x07\n", "line 1: invalid token"),
        (ONE * 17, "line 1: invalid token"),
        (
            f"{ONE}\n{ONE}\n",
            "line 2: expected one token, or a new one before the present one; delete this line",
        ),
        (f"{ONE}\n{TWO}\n{TWO}y\n", "line 3: expected one token, or a new one before"),
        (f"{ONE}\udcff", "line 1: invalid token"),
        (ONE * (1 << 15) + "x", "too long: expected at most 1,048,576 bytes"),
    ],
)
def test_files_of_tokens_that_cannot_be(path: Path, text: str, message: str) -> None:
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=message) as raised:
        read_tokens(path)
    assert not any(token[:20] in f"{raised.value!r} {raised.value.__context__!r}" for token in (ONE, TWO))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620])
def test_a_secret_that_others_can_read_is_not_used(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{path} must be a file of this user with mode 0600"):
        read_tokens(path)
    with pytest.raises(ConfigError, match=r"cannot read .*none: No such file"):
        read_tokens(path.with_name("none"))


def test_a_link_is_followed_to_a_file_that_is_checked(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_tokens(link) == [ONE]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=f"{link} must be .* mode 0600"):
        read_tokens(link)
