"""Chapter 04: figures, exercises and their solutions, misreadings."""
