"""Selection of the policy to trust, learned from ended jobs (M5)."""
