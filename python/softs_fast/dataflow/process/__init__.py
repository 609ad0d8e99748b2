"""What a process of a flow does: functions and hooks on the objects of its roles, in the order of the tickets."""
