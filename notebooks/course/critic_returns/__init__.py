"""Chapter 19: figures, exercises and their solutions, misreadings."""
