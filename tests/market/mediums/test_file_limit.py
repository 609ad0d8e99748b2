"""Segments under a limit on the size of files (`ulimit -f`)."""

import resource
from collections.abc import Iterator

import pytest

from softs_fast import SegmentError, ShmMedium

LIMIT = 1 << 16


@pytest.fixture
def limited() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("limited")
def test_the_limit_is_named() -> None:
    with pytest.raises(
        SegmentError, match=rf"a file of \d+ bytes, .* may write {LIMIT} \(ulimit -f, RLIMIT_FSIZE\)"
    ):
        ShmMedium(None, LIMIT, 2, create=True)
