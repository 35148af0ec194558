"""Live sources, a module per API; `slackwater.warehouse.sources.LIVE_SOURCES` names them."""
