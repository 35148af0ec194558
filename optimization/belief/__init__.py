"""Belief about the availability of spot where it is not observed in every slot (M13) (ours)."""
