"""File sources, a module per format."""
