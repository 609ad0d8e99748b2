"""The package `softs` of the drop-in: `python -m softs_fast.dropin` puts this folder in front of PYTHONPATH."""

from softs_fast.dropin import install

# Tells install() that this is not the real softs.
STANDS_IN_FOR_SOFTS = True

install()
