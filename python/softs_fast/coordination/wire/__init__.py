"""The messages of a coordinator on the wire: protobuf, package softs.v1 (coordinator.proto)."""
