"""One turn of the loop: read, forecast, decide, score, write, report."""
