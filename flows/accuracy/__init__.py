"""The accuracy report: every forecaster measured on what turns issue, beside last value."""
