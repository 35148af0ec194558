"""The seeded market generator."""
