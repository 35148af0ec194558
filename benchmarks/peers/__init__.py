"""The peers: Nixtla's libraries in an environment of their own (they need pandas 2), driven through files."""
