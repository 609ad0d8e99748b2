"""Benchmarks of softs_fast against softs: interleaved rounds in fresh processes."""
