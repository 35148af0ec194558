"""Peers: Nixtla's libraries in a separate environment (they need pandas 2), with data exchanged through files."""
