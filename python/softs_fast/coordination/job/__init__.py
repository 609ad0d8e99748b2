"""The coordinator and a worker as state machines: no clock, no socket, no thread, nothing but the standard library."""
