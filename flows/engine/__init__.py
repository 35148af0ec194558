"""Prefect: flows, deployments, serving, task runners."""
