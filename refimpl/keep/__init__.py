"""Former names, for what has not moved to `refimpl.checkpoint` and `History` yet."""
