"""Past slots made afterwards by the stages of a live turn."""
