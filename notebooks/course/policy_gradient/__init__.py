"""Chapter 01: figures, exercises and their solutions, misreadings."""
