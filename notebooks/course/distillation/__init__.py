"""Chapter 17: figures, exercises and their solutions, misreadings."""
