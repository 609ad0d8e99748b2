"""Ranks of several hosts: messages, the threads that exchange them, and the board of a group."""
