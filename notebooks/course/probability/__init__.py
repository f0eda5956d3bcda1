"""Chapter 16: figures, exercises and their solutions, misreadings."""
