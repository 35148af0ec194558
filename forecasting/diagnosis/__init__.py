"""Why a series is easy or hard: predictability, drift, calibration (M6.7)."""
