"""Offline training: data, objectives, the loop, evaluation, plots and a command line."""
