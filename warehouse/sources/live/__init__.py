"""Live sources, a module per API; `warehouse.sources.LIVE_SOURCES` names them."""
