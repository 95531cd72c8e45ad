"""Error rates of words, characters and phones, with intervals and significance; borders and confidences scored."""
