"""Everything that presents results: the HTML report, figures, comparisons of runs, pictures, training in the terminal.

`page` is the report of a recipe, made of parts from `figures` and `html`; `compare` compares runs, `inspect` describes
a file, `run_screen` shows a run, `doctor` and `environment` describe the machine.
"""
