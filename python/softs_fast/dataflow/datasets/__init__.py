"""Datasets on workers: the heads of dp ranks read shards, and the master knows which element is where."""
