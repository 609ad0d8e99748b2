"""Roles on several workers: which rows each gets, and what their reports are together. No clock, no socket, no tensor."""
