"""The file itself: connection, schema, lock, snapshots."""
