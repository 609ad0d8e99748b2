"""Rows: which columns they have and where, which functions have used them. No clock, no socket, no tensor."""
