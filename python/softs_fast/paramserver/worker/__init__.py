"""A worker of a parameter server: gradients out, weights in, whatever the network does.

`retries`, `sizes` and `exchanges` decide, without clock, socket or thread; `transport`, `session` and `heartbeats` do.
Nothing here loads a native module.
"""
