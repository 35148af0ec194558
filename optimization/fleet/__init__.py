"""Many jobs on shared counts, planned together by prices."""
