"""What runs the tickets of a flow: this process alone, or worker processes."""
