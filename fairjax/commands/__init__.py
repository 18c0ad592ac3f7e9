"""The verbs of the command line, one module for what belongs together."""
