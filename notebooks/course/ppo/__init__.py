"""Chapter 02: figures, exercises and their solutions, misreadings."""
