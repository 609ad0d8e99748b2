"""Configuration of samples: named tensors of a shape and a dtype, and their conversion to bytes and back."""

from .batch import BatchConfig, make_xy_config
from .spec import TensorSpec, dtype_to_torch, torch_dtype_to_str

__all__ = ["BatchConfig", "TensorSpec", "dtype_to_torch", "make_xy_config", "torch_dtype_to_str"]
