"""Places: what a text says of hosts, job and token file, and which texts are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.errors import ConfigError
from softs_fast.trust import Place, TlsFiles, UnknownHostError

FORM = "expected softs://HOST[:PORT][,HOST2[:PORT]]/JOB?token_file=FILE"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host:5", Place(("host:5",))),
        ("host", Place(("host:4700",))),
        ("[::1]:5", Place(("[::1]:5",))),
        ("softs://host", Place(("host:4700",))),
        ("softs://host/", Place(("host:4700",))),
        ("softs://host/digits", Place(("host:4700",), "digits")),
        (
            "softs://host:5,[2001:db8::1],10.0.0.1:6/run-7.b",
            Place(("host:5", "[2001:db8::1]:4700", "10.0.0.1:6"), "run-7.b"),
        ),
        ("softs://[fe80::1%eth0]:5/a", Place(("[fe80::1%eth0]:5",), "a")),
        ("softs://host?token_file=job.token", Place(("host:4700",), None, Path("job.token"))),
        (
            "softs://host/a?token_file=/run/a%20b/x%26y=z+1",
            Place(("host:4700",), "a", Path("/run/a b/x&y=z+1")),
        ),
        ("softs://host?token_file=%FF", Place(("host:4700",), None, Path("\udcff"))),
    ],
)
def test_texts_that_are_a_place(text: str, place: Place) -> None:
    assert Place.parse(text, "host link") == place
    assert Place.parse(str(place), "host link") == place


HOSTS = st.sampled_from(["a", "node-1.cluster", "10.0.0.1", "[::1]", "[2001:db8::7]"])
NAMES = st.text("ab0._-", min_size=1)


@given(
    st.lists(st.tuples(HOSTS, st.none() | st.integers(0, 65535)), min_size=1, max_size=4),
    st.none() | NAMES,
    st.none() | NAMES,
)
def test_each_place_is_read_as_it_is_written(
    hosts: list[tuple[str, int | None]], job: str | None, file: str | None
) -> None:
    said = ",".join(host if port is None else f"{host}:{port}" for host, port in hosts)
    text = f"softs://{said}" + (f"/{job}" if job else "") + (f"?token_file={file}" if file else "")
    addresses = tuple(f"{host}:{29401 if port is None else port}" for host, port in hosts)
    assert Place.parse(text, "coordinator") == Place(addresses, job, Path(file) if file else None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("softs://", "'' is not HOST or HOST:PORT, with a port up to 65535"),
        ("softs:///job", "'' is not HOST or HOST:PORT, with a port up to 65535"),
        ("softs://a,,b/job", "'' is not HOST or HOST:PORT, with a port up to 65535"),
        ("softs://a,/job", "'' is not HOST or HOST:PORT, with a port up to 65535"),
        ("softs://a:65536/job", "'a:65536' is not HOST or HOST:PORT"),
        ("softs://a:/job", "'a:' is not HOST or HOST:PORT"),
        ("softs://9000/job", "'9000' is not HOST or HOST:PORT"),
        ("softs://a:-1/job", "'a:-1' is not HOST or HOST:PORT"),
        ("softs://::1/job", "'::1' is not HOST or HOST:PORT"),
        ("softs://[::1/job", "'[::1' is not HOST or HOST:PORT"),
        ("softs://me@a/job", "'me@a' is not HOST or HOST:PORT"),
        ("softs://a:" + "9" * 5000 + "/job", "with a port up to 65535"),
        ("softs://a/b/c", "invalid name of a job 'b/c'"),
        ("softs://a/b+c", "a place cannot name a job with other characters: leave /JOB out"),
        ("softs://a/job#x", "invalid name of a job 'job#x'"),
        ("softs://a/%6Aob", "invalid name of a job '%6Aob'"),
        ("softs://a/job?plain=yes", "unknown parameter 'plain'"),
        ("softs://a/job?token=secret", "unknown parameter 'token'"),
        ("softs://a/job?token_file=", "token_file must name one file"),
        ("softs://a/job?token_file", "token_file must name one file"),
        ("softs://a/job?token_file=x&token_file=x", "token_file must name one file"),
        ("softs://a/job?token_file=%00", "token_file must name one file"),
        ("softs://a/job?token_file=x&", "unknown parameter; expected"),
        ("softs://a/job?secret", "unknown parameter; expected"),
    ],
)
def test_texts_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Place.parse(text, "coordinator")
    said = str(raised.value)
    assert said.startswith("place of coordinator is 'softs://")
    assert why in said
    assert said.endswith(FORM)
    assert "secret" not in said


@pytest.mark.parametrize("text", ["", "http://a:1", "ipc://a", "SOFTS://a/job", "a/job", "a,b", "9000"])
def test_other_texts_name_both_forms(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"address of coordinator is .*; expected HOST:PORT, .*, or softs://HOST"
    ):
        Place.parse(text, "coordinator")


def test_a_service_without_a_standard_port_needs_one() -> None:
    assert Place.parse("tcp://a:1", "master", scheme="tcp://") == Place(("a:1",))
    assert Place.parse("softs://a:1,b:2/ppo", "master", scheme="tcp://").addresses == ("a:1", "b:2")
    for text in ("tcp://a", "a:1", "softs://a/ppo", "softs://tcp://a:1/ppo"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            Place.parse(text, "master", scheme="tcp://")


def test_what_is_given_beside_a_place_is_the_same_or_refused() -> None:
    bare, full = Place(("a:1",)), Place(("a:1",), "digits", Path("x"))
    assert [bare.job_or(None), bare.job_or("b")] == [None, "b"]
    assert [full.job_or(None), full.job_or("digits")] == ["digits", "digits"]
    pem = TlsFiles(Path("c"), Path("k"), Path("ca"))
    assert bare.credentials_or(pem) is pem
    assert full.credentials_or(TlsFiles()) == TlsFiles(token_file=Path("x"))
    same: list[Any] = [Path("x"), "x", "./x", os.path.abspath("x")]
    assert {full.credentials_or(TlsFiles(token_file=one)).token_file for one in same} == {Path("x")}
    with pytest.raises(ConfigError, match="job 'b' contradicts 'digits' of the place; give one of them"):
        full.job_or("b")
    with pytest.raises(ConfigError, match="token file 'y' contradicts 'x' of the place"):
        full.credentials_or(TlsFiles(token_file=Path("y")))
    with pytest.raises(ConfigError, match="a token file makes the certificates"):
        full.credentials_or(pem)


def test_the_environment_names_a_token_file_where_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    bare, pem = Place(("a:1",)), TlsFiles(Path("c"), Path("k"), Path("ca"))
    monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", "e")
    assert bare.credentials_or(TlsFiles()) == TlsFiles(token_file=Path("e"))
    for own in (pem, TlsFiles(ca=Path("ca")), TlsFiles(token_file=Path("y"))):
        assert bare.credentials_or(own) is own
    assert replace(bare, token_file=Path("x")).credentials_or(TlsFiles()).token_file == Path("x")
    monkeypatch.setenv("SOFTS_FAST_TOKEN_FILE", "")
    assert bare.credentials_or(TlsFiles()) == TlsFiles()


def test_the_own_address_is_that_on_the_way_to_the_first_host_that_is_known() -> None:
    assert Place(("a..b:1", "127.0.0.1:1", "[::1]:1")).own_side("coordinator") == "127.0.0.1"
    with pytest.raises(UnknownHostError, match=r"'b\.\.c:1'"):
        Place(("a..b:1", "b..c:1")).own_side("coordinator")


def test_a_place_that_cannot_have_several_hosts() -> None:
    assert Place(("a:1",)).only_address("coordinator") == "a:1"
    with pytest.raises(
        ConfigError, match="place of coordinator: expected one host, got a:1 and b:2; a server"
    ):
        Place(("a:1", "b:2")).only_address("coordinator")
