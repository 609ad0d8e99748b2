"""What a flow says of itself while it runs: warnings when nothing ends, its status, a trace."""
