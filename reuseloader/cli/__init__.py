"""The command line: ``python -m reuseloader``, also the script ``reuseloader``.

A subcommand is a module that has ``add(commands)``, which adds its parser to an argparse action
and sets ``run``, a function of the parsed arguments that returns an `Outcome`; `main` lists them.
"""
