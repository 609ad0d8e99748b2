"""What the ranks of a star must prove: certificates, a token, the worker of the table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("grpc", reason="needs the extra grpc")
pytest.importorskip("cryptography", reason="makes certificates")
from certificates import Authority
from token_files import token_file

from softs_fast.coordination.credentials import ClientCredentials, ServerCredentials
from softs_fast.coordination.star import Epoch, GrpcStrategy, StarOptions
from softs_fast.errors import ConfigError, PeerLost, SoftsError

EPOCH = Epoch(7, 1, ("w0", "w1"))
Options = Callable[[str], StarOptions]
NEVER_S = 600.0


def meet(options: list[StarOptions], epoch: Epoch = EPOCH) -> list[Any]:
    """Have two ranks of this process meet and reduce; what each gets or raises. If rank 1 fails, rank 0 gives up."""
    strategies = [GrpcStrategy(one, timeout_s=NEVER_S) for one in options]

    def rank(number: int, folder: str) -> Any:
        store = dist.FileStore(f"{folder}/store", 2)
        try:
            with strategies[number].meet(number, 2, store, epoch) as strategy:
                tensor = torch.full((300_000,), float(number + 1))
                strategy.all_reduce(tensor)
                assert tensor.eq(3.0).all()
                return strategy.n_refused
        except SoftsError as error:
            strategies[0].give_up("rank 1 was refused")
            return error

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2), [folder] * 2))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def options(authority: Authority) -> Options:
    """Options of a worker, with a certificate of its name."""

    def of(name: str, uri: str | None = None) -> StarOptions:
        cert, key = (Path(path) for path in authority.issue(name, name, uri=uri))
        server = ServerCredentials(cert=cert, key=key, ca=authority.file)
        return StarOptions(server=server, client=ClientCredentials(ca=authority.file, cert=cert, key=key))

    return of


def test_ranks_reduce_over_tls_with_certificates_of_both(options: Options) -> None:
    assert meet([options("w0"), options("w1")]) == [0, 0]


def test_a_worker_cannot_take_the_rank_of_another(options: Options) -> None:
    _, second = meet([options("w0"), options("w7")])
    assert isinstance(second, ConfigError)
    assert '"w7" joins as rank 1, which is of worker "w1"' in str(second)


def test_an_administrator_is_no_rank(options: Options) -> None:
    _, second = meet([options("w0"), options("admin")], Epoch(7, 1, ("w0", "admin")))
    assert isinstance(second, ConfigError)
    assert '"admin" is an administrator, which cannot be a worker' in str(second)


def test_ranks_with_a_token_file_need_no_certificates(tmp_path: Path) -> None:
    def rank(letter: str) -> StarOptions:
        file = token_file(tmp_path / letter, letter)
        return StarOptions(
            server=ServerCredentials(token_file=file), client=ClientCredentials(token_file=file)
        )

    assert meet([rank("a"), rank("a")]) == [0, 0]
    first, wrong = meet([rank("a"), rank("b")])
    assert isinstance(wrong, ConfigError)
    assert f"it does not have the token of {tmp_path / 'b'}; give both ends" in str(wrong)
    assert isinstance(first, SoftsError)
    _, none = meet([rank("a"), StarOptions()])
    assert "it speaks TLS, and this process does not; give --token-file" in str(none)


def test_another_machine_is_not_reached_without_tls() -> None:
    store = dist.HashStore()
    store.set("star address", "192.0.2.1:9")
    with pytest.raises(ConfigError, match=r"rank 0 at 192\.0\.2\.1:9 is reachable .* without TLS"):
        GrpcStrategy().meet(1, 2, store, EPOCH)


def test_ranks_with_other_options_are_refused() -> None:
    _, second = meet([StarOptions(piece_bytes=4096), StarOptions(piece_bytes=8192)])
    assert isinstance(second, ConfigError)
    assert "expects 2 ranks, pieces of 8192 bytes" in str(second)
    assert "rank 0 has 2, 4096" in str(second)


def test_a_rank_that_does_not_join_is_named_with_its_worker() -> None:
    with pytest.raises(PeerLost, match=r'missing: rank 1 .which has not joined, worker "w1".$'):
        GrpcStrategy(timeout_s=0.2).meet(0, 2, dist.HashStore(), EPOCH)
