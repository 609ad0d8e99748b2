"""What a fork of a process must not do with what the process has made."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

import pytest
from waiting import WATCHDOG_S

from softs_fast.errors import ForkedError


def check_fork(
    *refused: Callable[[], object], match: str | None = None, then: Callable[[], object] = lambda: None
) -> None:
    """Check uses in a fork of this process; one that hangs ends with it.

    Args:
        refused: Functions, each of which raises ForkedError there.
        match: Pattern that the text of each error matches.
        then: Function called there at last, without an error.
    """
    child = os.fork()
    if child == 0:
        status = 1
        # No function of this process could run while a call waits for a lock.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
        try:
            for use in refused:
                with pytest.raises(ForkedError, match=match):
                    use()
            then()
            status = 0
        except BaseException:
            # Not back into what its parent is doing.
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
