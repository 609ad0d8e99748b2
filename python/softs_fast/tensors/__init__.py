"""Tensors in memory: dtypes, and CUDA tensors and streams by address."""
