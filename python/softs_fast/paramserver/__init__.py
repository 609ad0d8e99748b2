"""A parameter server that survives the internet: workers push gradients over HTTP, a server steps."""
