"""Which processes take part in a training: a coordinator, its workers, and how they speak with each other."""
