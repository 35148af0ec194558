"""What every command shares: options, the opening of a warehouse, the printing of an answer."""
