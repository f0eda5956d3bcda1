"""Chapter 02b: figures, exercises and their solutions, misreadings."""
