"""What a user holds: a flow, its steps, and requests by hand."""
