"""Workers of a flow as threads of one process, of which one runs at a time, always in the same order."""
