"""What the master of a flow decides: ready rows, tickets, versions, shards. No clock, no socket, no tensor."""
