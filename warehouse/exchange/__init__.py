"""A warehouse out of its file and back: export, import, compact, share."""
