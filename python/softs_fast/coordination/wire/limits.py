"""How long messages and their parts may be."""

from __future__ import annotations

from ..job.options import MAX_SEATS, MAX_TEXT

__all__ = [
    "MAX_KEYS_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_SESSION_BYTES",
    "MAX_STATUS_BYTES",
    "MAX_TABLE_BYTES",
    "MAX_VALUE_BYTES",
    "N_BYTES",
    "N_ITEMS",
]

#: Of a message of a worker, and of all others to it than tables.
MAX_SESSION_BYTES = 64 << 10
#: Of a table: room for MAX_SEATS members with the longest names and addresses.
MAX_TABLE_BYTES = 4 << 20
#: Of a status: seats and spares with their texts.
MAX_STATUS_BYTES = 16 << 20
#: Of the value of a key.
MAX_VALUE_BYTES = 64 << 10
#: Of a request for keys: the value, and the names of the keys.
MAX_KEYS_BYTES = MAX_VALUE_BYTES + (64 << 10)
#: Of any other request.
MAX_REQUEST_BYTES = 16 << 10

#: Bytes of texts as UTF-8, by the name of their field; others have MAX_TEXT characters at most.
N_BYTES = {"worker_id": 256, "held_by": 256, "address": 512, "keys": 1024}
#: Items of sequences, by the name of their field.
N_ITEMS = {
    "members": MAX_SEATS,
    "survivors": MAX_SEATS,
    "seats": 2 * MAX_SEATS,
    "fences": 64,
    "peers": MAX_SEATS,
    "keys": 256,
    "log": 64,
}
assert MAX_SEATS * (N_BYTES["worker_id"] + N_BYTES["address"] + 64) + 4 * MAX_TEXT < MAX_TABLE_BYTES
