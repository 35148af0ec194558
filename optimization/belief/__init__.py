"""What may be believed of spot where its availability is not observed in every slot (M13) (ours)."""
