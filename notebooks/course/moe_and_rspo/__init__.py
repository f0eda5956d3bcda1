"""Chapter 09: figures, exercises and their solutions, misreadings."""
