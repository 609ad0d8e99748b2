"""All-reduce between CUDA devices of one host, through CUDA IPC."""
