"""Weights of roles between layouts: which worker holds which region of a tensor, and which target reads it where."""
