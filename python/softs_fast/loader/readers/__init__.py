"""How tensors are made of slots: copies, views of host memory, and tensors on a device."""
