"""Sums over the ranks of a role, always in the order of the ranks: the same bits in one process and in several."""
