"""Language models: n-grams, their estimation and their files."""
