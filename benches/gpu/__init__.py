"""Benches of the CUDA side; each has `measure() -> dict`, and runs alone."""
