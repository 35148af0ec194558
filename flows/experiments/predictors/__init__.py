"""The experiment `predictors`."""
