"""Chapter 08: figures, exercises and their solutions, misreadings."""
