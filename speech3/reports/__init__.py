"""What people look at: the HTML report, figures, comparisons of runs, pictures of features, training in the terminal.

`page` is the report of a recipe, `figures` and `html` its parts, `compare` sets runs side by side, `inspect`
describes a file, `run_screen` shows a run, `doctor` and `environment` the machine.
"""
