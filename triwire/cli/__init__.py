"""The command ``triwire``."""
