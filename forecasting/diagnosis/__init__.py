"""Diagnosis of series: predictability, drift, calibration (M6.7)."""
