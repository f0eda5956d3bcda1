"""Chapter 10: figures, exercises and their solutions, misreadings."""
