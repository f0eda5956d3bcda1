"""Chapter 00: figures, exercises and their solutions, misreadings."""
