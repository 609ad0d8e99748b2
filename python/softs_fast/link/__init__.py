"""The link between hosts: samples of suppliers on other hosts, by one encrypted connection per pair of hosts.

| question | answer |
|---|---|
| how this host is joined with others | `HostLink` |
| which port a link has if an address names none | `PORT` |
"""

from .addresses import PORT
from .host_link import HostLink

__all__ = ["PORT", "HostLink"]
