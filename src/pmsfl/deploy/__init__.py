"""A federation over a real network."""
