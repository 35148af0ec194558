"""Export, import, compact and publish a warehouse."""
