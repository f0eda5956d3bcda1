"""Chapter 01b: figures, exercises and their solutions."""
