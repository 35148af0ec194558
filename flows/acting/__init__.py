"""Acting on decisions: instances are brought to the newest decision of each job and kept there."""
