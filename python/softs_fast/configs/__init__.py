"""Configuration of samples: named tensors of a shape and a dtype, and their conversion to bytes and back."""

from .batch import BatchConfig, make_xy_config
from .ragged import RaggedLayout
from .spec import TensorSpec, check_length, dtype_to_torch, torch_dtype_to_str

__all__ = [
    "BatchConfig",
    "RaggedLayout",
    "TensorSpec",
    "check_length",
    "dtype_to_torch",
    "make_xy_config",
    "torch_dtype_to_str",
]
