"""One order for all steps of all calls: tickets. No clock, no socket, no thread."""
