"""Chapter 18: figures, exercises and their solutions, misreadings."""
