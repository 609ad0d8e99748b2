"""A client that stops (SIGSTOP, a debugger, a machine that swaps) and takes its samples by TCP: no supplier waits."""

import os
import signal
from pathlib import Path

import stamp
from market import Market, take

import softs_fast


def test_a_stopped_client_does_not_hold_up_the_samples_of_another(short_path: Path) -> None:
    market = Market(short_path, medium="tcp")
    try:
        market.broker()
        victim = market.client(n_samples=2000, verbose=True)
        market.supplier()
        for _ in range(20):
            victim.event("sample")
        victim.stop()
        checker = stamp.Checker()
        with softs_fast.Client(market.frontend, softs_fast.TCPMedium, market.slot_size, 4) as client:
            # Orders of both clients come in turn: so all slots of the one that is stopped are tried meanwhile, and more
            # than once.
            take(client, checker, 1000)
            os.kill(victim.pid, signal.SIGCONT)
            done = victim.event("done")
            assert done["received"] == 2000, "its orders were given back, not failed"
            take(client, checker, 100)
            assert client.get_stats()["connected_clients"] == 2
    finally:
        market.end()
