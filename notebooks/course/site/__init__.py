"""Pages of the web edition that are made from data and not from a notebook."""
