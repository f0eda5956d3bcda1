"""A package, so that another's `tests` among the installed ones is not taken for it."""
