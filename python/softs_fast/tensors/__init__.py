"""What a tensor is in memory: dtypes, and CUDA tensors and streams by address."""
