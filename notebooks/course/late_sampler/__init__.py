"""Chapter 15: figures, exercises and their solutions, misreadings."""
