"""What a user declares: roles, their layouts, functions with their columns, and the graph that follows from them."""
