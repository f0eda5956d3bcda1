"""What only the chapters use: figures, sliders, exercises, misreadings.

A notebook's working folder is this folder's parent, so `from course import …` works.
"""
