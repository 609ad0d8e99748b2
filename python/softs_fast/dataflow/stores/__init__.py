"""How many bytes the store of each worker holds, and which calls have room. No clock, no socket, no tensor."""
