"""Markets of a turn: which are followed, their histories, and the markets of a job."""
