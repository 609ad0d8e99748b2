"""The journal of a flow: common saves of all roles and of the master, and a flow that goes on from the last one."""
