"""The state of roles in files: modules, optimizers, schedules, and generators of random numbers."""
