"""Plain folds of logs: each says what a log means, without the product's rules."""
