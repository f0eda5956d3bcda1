"""Chapter 13: figures, exercises and their solutions, misreadings."""
