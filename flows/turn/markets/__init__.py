"""Markets of a turn: their histories, and the markets of a job."""
