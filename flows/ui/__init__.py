"""A page to watch: a read-only local web app over the warehouse, drawn on the server, that asks nothing of any other host."""
