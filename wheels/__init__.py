"""The files of a release, built on whatever Linux machine: `make wheels`, or `python -m wheels` in its environment."""
