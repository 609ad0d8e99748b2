"""Memory that the process may not have."""

from __future__ import annotations

import resource

import pytest

from softs_fast import SegmentError, ShmMedium


def test_a_limit_on_the_size_of_files_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(SegmentError, match="RLIMIT_FSIZE lets this process make files of 8192 bytes"):
            ShmMedium(None, 8192, 4, create=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
