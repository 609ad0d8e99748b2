"""The state machine of a run: which pushes count, when a round closes, which samples are trained on. No clock, no socket."""
