"""Prefect integration: flows, deployments, serving and task runners."""
