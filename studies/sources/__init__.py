"""Readers of published traces of availability and of scraped offers, which the product reads as plug-ins."""
