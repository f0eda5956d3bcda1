"""Chapter 07: figures, exercises and their solutions, misreadings."""
