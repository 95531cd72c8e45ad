"""From a recipe to a word error rate: stages that run in order, each again only when its dependencies change.

This package is at the end of the road (DESIGN.md) and may import every other.
"""
