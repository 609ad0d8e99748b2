"""One small job in several ways: how long the program is, how fast, and what a killed teacher does to it."""
