"""JSON Schemas of the commands' JSON answers, and descriptions of the warehouse tables."""
