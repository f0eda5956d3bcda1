"""Chapter 05: figures, exercises and their solutions, misreadings."""
