"""From a recipe to a word error rate: the stages in order, each run once, again when what it depends on changed.

This room stands at the end of the road and may import every other.
"""
