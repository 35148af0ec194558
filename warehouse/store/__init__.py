"""Warehouse file: connection, schema, lock, snapshots."""
