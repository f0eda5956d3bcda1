"""Chapter 12: figures, exercises and their solutions, misreadings."""
