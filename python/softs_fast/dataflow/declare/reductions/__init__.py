"""Sums over the ranks of a role, always in the order of the ranks: the same bits wherever they are."""
