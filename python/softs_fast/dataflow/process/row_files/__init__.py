"""Rows in files of common saves: how they are written, and how workers read them into their stores."""
