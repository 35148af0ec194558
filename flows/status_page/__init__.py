"""The page of a pipeline's status: the completeness map drawn, freshness, alarms; one file that loads nothing."""

from flows.status_page.page import render_status_page, write_status_page

__all__ = ["render_status_page", "write_status_page"]
