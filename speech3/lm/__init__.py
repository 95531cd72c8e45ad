"""Language models: n-gram models, their estimation and files, and grammars."""
