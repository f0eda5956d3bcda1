"""Chapter 11: figures, exercises and their solutions, misreadings."""
