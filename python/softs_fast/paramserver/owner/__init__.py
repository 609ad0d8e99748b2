"""Programs of the owner: how they find a server, read its status and tell it what to do."""
