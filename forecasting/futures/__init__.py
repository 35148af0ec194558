"""Sample paths of a forecast, and deliberate errors in one (M6.8)."""
