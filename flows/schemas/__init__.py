"""What the answers that programs read look like, as JSON Schemas."""
