"""What several chapters use. It imports no chapter."""
