"""The tour: one token through six scenes, and a row for every method."""
