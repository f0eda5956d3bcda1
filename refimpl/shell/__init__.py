"""The command line: what is typed, tried, printed and kept, around the core."""
