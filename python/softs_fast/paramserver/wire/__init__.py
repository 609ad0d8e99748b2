"""What travels between a parameter server and its workers: manifest, frames, signatures, JSON records.

Server and workers share it. It needs torch, on CPU tensors, and the standard library; zstd is of Python 3.14, or of the
package backports.zstd. No module here has a clock, a socket or a thread.
"""
