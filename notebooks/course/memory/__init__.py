"""Chapter 13b: figures, exercises and their solutions."""
