"""From a recipe to a word error rate: stages that run in order, and run again only when their dependencies change.

This package may import every other, except `speech3.cli`.
"""
