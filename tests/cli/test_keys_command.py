"""``softs-fast keys``: makes, replaces and shows token files, and prints no token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="knows fingerprints")
from softs_fast.cli import main
from softs_fast.trust import read_tokens
from softs_fast.trust.certificates import Authority


def test_a_token_is_made_replaced_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.token"
    assert main(["keys", "new", str(path)]) == 0
    (first,) = read_tokens(path)
    os.utime(path, (0, path.stat().st_mtime - 7300))
    assert main(["keys", "show", str(path)]) == 0
    assert main(["keys", "rotate", str(path)]) == 0
    second, old = read_tokens(path)
    assert old == first
    assert main(["keys", "show", str(path)]) == 0
    out, errors = capsys.readouterr()
    prints = [Authority(token).fingerprint for token in (first, second)]
    made, age, one, rotated, new_age, two, three = out.splitlines()
    assert made == f"{path}: a new token; copy the file to each host of the job"
    assert age == f"{path}: 1 token, changed 2 h ago"
    assert one == f"{prints[0]}  own certificate signed by"
    assert rotated.endswith("copy the file to each host of the job, then delete its second line on each")
    assert new_age.startswith(f"{path}: 2 tokens, changed ")
    assert [two, three] == [f"{prints[1]}  own certificate signed by", f"{prints[0]}  accepted too"]
    assert errors == ""
    assert not any(token in out for token in (first, second))


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.token"
    for command in ("rotate", "show"):
        assert main(["keys", command, str(path)]) == 1
        assert capsys.readouterr().err == f"softs-fast: cannot read {path}: No such file or directory\n"
    path.write_text("secret-of-more-than-22-characters\n")
    path.chmod(0o644)
    for command in ("new", "rotate", "show"):
        assert main(["keys", command, str(path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert ("File exists" if command == "new" else "must be a file of this user with mode 0600") in line
        assert "secret" not in line
