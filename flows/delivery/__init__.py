"""Decisions handed to whoever acts on them: documents, folders, webhooks."""
