"""Error rates of words, characters and phones, with intervals and significance; boundaries and confidences scored."""
