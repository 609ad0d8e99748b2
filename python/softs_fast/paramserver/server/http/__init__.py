"""Requests of workers and of the owner: connections, limits, signatures, answers."""
