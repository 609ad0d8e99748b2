"""A parameter server for a few machines on the internet: its rounds, its wire, its server, its worker."""
