"""What makes steps of the master work of workers, and what workers have done events of the master."""
