"""What a market is doing: snapshots of a broker and its clients, and metrics made of them."""
