"""Read-only local web app over the warehouse; charts and pages need no other host."""
