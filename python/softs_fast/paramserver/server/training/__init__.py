"""The model of a server: steps, evaluations, weights for workers, files."""
