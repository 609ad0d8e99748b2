"""The link between hosts: samples of suppliers on other hosts, by one encrypted connection per pair of hosts.

| question | answer |
|---|---|
| how this host is joined with others | `HostLink` |
"""

from .host_link import HostLink

__all__ = ["HostLink"]
