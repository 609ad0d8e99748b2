"""Signatures: known answers, what they cover, counters; invites."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.errors import ConfigError, SoftsError, WireError
from softs_fast.paramserver.wire import signing
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.signing import Authorization, CounterWindow, answer_mac, request_mac

KEY = bytes(32)
REQUEST = {
    "worker_id": "w1",
    "method": "PUT",
    "target": "/v1/push/1.2?x=1",
    "n": 3,
    "upload_offset": 10,
    "digested": b"header",
}
ANSWER = {"request": "ab", "status": 200, "version": "1.2", "upload_offset": "5", "digested": b"{}"}
INVITE = Invite("https://example.org:8000/a", bytes(range(16)), bytes(range(32)), bytes(range(1, 33)))


def test_hkdf_gives_the_known_answers() -> None:
    # RFC 5869, appendices A.1 and A.3; the first 32 bytes.
    assert signing.hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))) == bytes.fromhex(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    )
    assert signing.hkdf(b"\x0b" * 22, b"", b"") == bytes.fromhex(
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker_id", "w2"),
        ("method", "POST"),
        ("target", "/v1/push/1.3?x=1"),
        ("target", "/v1/push/1.2?x=2"),
        ("n", 4),
        ("upload_offset", 11),
        ("upload_offset", None),
        ("digested", b"headet"),
    ],
)
def test_the_mac_of_a_request_covers(name: str, value: object) -> None:
    assert request_mac(KEY, **REQUEST) != request_mac(KEY, **{**REQUEST, name: value})  # type: ignore[arg-type]
    assert request_mac(KEY, **REQUEST) != request_mac(b"k" * 32, **REQUEST)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("request", "ac"), ("status", 201), ("version", "1.3"), ("upload_offset", "6"), ("digested", b"{ }")],
)
def test_the_mac_of_an_answer_covers(name: str, value: object) -> None:
    assert answer_mac(KEY, **ANSWER) != answer_mac(KEY, **{**ANSWER, name: value})  # type: ignore[arg-type]


def test_a_prefix_of_a_proxy_is_not_signed() -> None:
    with_prefix = {**REQUEST, "target": "/tunnel" + str(REQUEST["target"])}
    assert request_mac(KEY, **REQUEST) == request_mac(KEY, **with_prefix)  # type: ignore[arg-type]


def test_keys_differ_by_use_job_and_worker() -> None:
    secret, job, one, two = bytes(32), bytes(16), b"1" * 16, b"2" * 16
    keys = {
        signing.join_key(secret, job, one),
        signing.join_key(secret, job, two),
        signing.answer_key(secret, job),
        signing.answer_key(secret, b"j" * 16),
        signing.session_key(secret, job, one, two, "a"),
        signing.session_key(secret, job, one, two, "b"),
        signing.session_key(secret, job, two, one, "a"),
    }
    assert len(keys) == 7


def test_the_header_is_read_as_it_was_written() -> None:
    given_ = Authorization("w-1_A", 7, "0a" * 32)
    assert Authorization.parse(str(given_)) == given_


@pytest.mark.parametrize(
    "value",
    ["", "SF1", "SF2 id=a, n=1, mac=" + "0" * 64, "SF1 id=a, n=-1, mac=" + "0" * 64, "SF1 id=ü, n=1, mac=" + "0" * 64,
     "SF1 id=a, n=1, mac=" + "0" * 63, "SF1 id=a, n=1, mac=" + "0" * 64 + "\n", "SF1 id=" + "a" * 300],
)  # fmt: skip
def test_other_headers_are_refused(value: str) -> None:
    with pytest.raises(WireError, match="Authorization"):
        Authorization.parse(value)


def test_each_counter_is_valid_once_whatever_the_order() -> None:
    for seed in range(50):
        generator = random.Random(seed)
        window, taken = CounterWindow(), set()
        highest = 0
        for _ in range(300):
            n = max(0, highest + generator.randint(-90, 5 if generator.random() < 0.95 else 200))
            expected = n > 0 and n not in taken and n > highest - 64
            assert window.take(n) == expected
            if expected:
                taken.add(n)
                highest = max(highest, n)


def test_an_invite_is_read_as_it_was_written() -> None:
    assert Invite.parse(f"  '{INVITE}'\n") == INVITE
    plain = Invite("http://127.0.0.1:80", INVITE.job, INVITE.secret)
    assert Invite.parse(str(plain)) == plain
    assert Invite.parse(f"{plain}/") == plain
    assert "secret" not in repr(INVITE)
    assert " " not in str(INVITE)


def test_a_place_with_a_token_file_is_an_invite() -> None:
    invite = Invite.parse("softs://a,[::1]:9/digits?token_file=x%20y")
    assert (invite.url, invite.pin) == ("https://a:8000", None)
    assert str(invite) == "softs://a:8000,[::1]:9/digits?token_file=x%20y"
    assert Invite.parse(str(invite)) == invite
    assert replace(INVITE, place=invite.place, pin=None).moved("https://b").place == invite.place
    with pytest.raises(ConfigError, match=r"names no token file; add \?token_file=FILE, or paste the invite"):
        Invite.parse("softs://a/digits")
    with pytest.raises(ConfigError, match="place of parameter server is 'softs://a:x'"):
        Invite.parse("softs://a:x?token_file=f")


def test_an_invite_moves_with_its_pin() -> None:
    assert INVITE.moved("https://b.example/ ").url == "https://b.example"
    for url in (
        "http://b.example",
        "ftp://b",
        "b",
        "https://",
        "https://a@b",
        "https://b?c",
        "https://b:99999",
    ):
        with pytest.raises(ConfigError):
            INVITE.moved(url)


@given(cut=st.integers(0, len(str(INVITE)) - 1))
def test_a_cut_invite_is_refused_unless_only_the_url_is_shorter(cut: int) -> None:
    line = str(INVITE)
    url_begins = line.index("@") + len("@https://e")
    if cut < url_begins:
        with pytest.raises(SoftsError) as raised:
            Invite.parse(line[:cut])
        assert line[60:90] not in str(raised.value)
    else:
        assert Invite.parse(line[:cut]).secret == INVITE.secret
