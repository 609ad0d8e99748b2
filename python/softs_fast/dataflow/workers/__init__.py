"""The master's end of the workers: objects of this process, or worker processes on one host or several."""
