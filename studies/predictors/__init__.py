"""Published predictors compared with ours, which no plan uses."""
