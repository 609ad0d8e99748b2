"""The GPU check, `softs-fast gpu`: what the CUDA side does on this machine's devices, step by step."""
