"""One instance, up or down: the rules of the public "Can't Be Late" benchmark, its policies, and tables of backward induction (M4.6)."""
