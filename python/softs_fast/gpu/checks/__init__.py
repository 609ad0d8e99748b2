"""Checks of correctness on CUDA devices; the tests call them too. Each raises CheckFailed, or the error that it met."""
