"""Endless datasets of the samples of a product, and their DataLoader. Needs torch."""
