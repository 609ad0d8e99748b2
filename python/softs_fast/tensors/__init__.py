"""Tensors in memory: dtypes, tensors of varying length, and CUDA tensors and streams by address."""

from .ragged import RaggedTensor

__all__ = ["RaggedTensor"]
