"""The renter's world between decisions (M12): grants, losses, boots, restarts and checkpoints, in seconds."""
