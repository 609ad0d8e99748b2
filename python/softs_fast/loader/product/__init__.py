"""Which product is wanted, and how a client follows it."""
