"""Chapter 03: figures, exercises and their solutions, misreadings."""
