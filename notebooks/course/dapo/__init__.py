"""Chapter 06: figures, exercises and their solutions, misreadings."""
