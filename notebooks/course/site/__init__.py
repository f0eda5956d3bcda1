"""The web edition of the course: static pages from the executed notebooks."""
