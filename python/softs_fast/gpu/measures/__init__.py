"""Measurements on CUDA devices."""
