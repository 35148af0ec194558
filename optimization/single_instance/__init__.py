"""One instance, up or down: rules of the public "Can't Be Late" benchmark, its policies, tables of backward induction (M4.6)."""
