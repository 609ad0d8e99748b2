"""A worker's and an administrator's side of the connection to a coordinator."""
