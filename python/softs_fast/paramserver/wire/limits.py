"""How long messages and their parts may be."""

from __future__ import annotations

__all__ = [
    "FIRST_PART_BYTES",
    "MAX_AUTHORIZATION_BYTES",
    "MAX_ELEMENTS",
    "MAX_HEADER_BYTES",
    "MAX_ITEMS",
    "MAX_JOIN_BYTES",
    "MAX_JSON_BYTES",
    "MAX_LEASE",
    "MAX_MANIFEST_BYTES",
    "MAX_PART_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_SAMPLES",
    "MAX_STATUS_BYTES",
    "MAX_TEXT",
    "MAX_WAIT_S",
    "MIN_PART_BYTES",
    "WHOLE_FRAME_BYTES",
]

#: Of a manifest as JSON.
MAX_MANIFEST_BYTES = 1 << 20
#: Of a request to join: the manifest, as text within JSON, and the rest.
MAX_JOIN_BYTES = 2 * MAX_MANIFEST_BYTES + (64 << 10)
#: Of any other JSON that a server is sent: it is read before its signature can be checked.
MAX_REQUEST_BYTES = 4 << 10
#: Of any other JSON but a status.
MAX_JSON_BYTES = 64 << 10
#: Of a status.
MAX_STATUS_BYTES = 4 << 20
#: Of the head of a request.
MAX_HEADER_BYTES = 16 << 10
#: Of the value of Authorization.
MAX_AUTHORIZATION_BYTES = 256
#: Characters of a text.
MAX_TEXT = 4096
#: Items of a sequence in JSON.
MAX_ITEMS = 4096
#: Elements of all parameters together, and of all buffers: indices of top-k have 32 bits.
MAX_ELEMENTS = (1 << 31) - 1
#: Samples of one push.
MAX_SAMPLES = 1 << 40
#: Number of a lease of samples.
MAX_LEASE = (1 << 32) - 1
#: Of a part of an upload: the least that a server announces, what a worker begins with, the most.
MIN_PART_BYTES, FIRST_PART_BYTES, MAX_PART_BYTES = 256 << 10, 1 << 20, 16 << 20
#: A frame up to this length goes with its announcement, in one request.
WHOLE_FRAME_BYTES = 256 << 10
#: Seconds that a server holds a request for weights: a tunnel ends it after 100.
MAX_WAIT_S = 60.0
