"""Monitoring of a market: snapshots of a broker and its clients, and metrics made of them."""
