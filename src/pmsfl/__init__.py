"""pmsfl: split federated learning with probabilistic masks."""
