"""Chapter 14: figures, exercises and their solutions, misreadings."""
