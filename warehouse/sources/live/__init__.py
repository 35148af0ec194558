"""Live sources, one file per API; `warehouse.sources.LIVE_SOURCES` names them."""
