"""The tasks in the shapes of the transformers pipelines: nothing is computed here that others do.

What is asked is put into the words of the native tasks, and what they answer into those of the
pipelines; errors name the fields that the caller knows.
"""
