"""What a master and its workers say to each other: a closed set of messages, each field checked. Nothing is pickled."""
