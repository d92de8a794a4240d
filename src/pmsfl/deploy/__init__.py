"""A federation over a network: the two roles of a round on real hosts (docs/deploy.md)."""
