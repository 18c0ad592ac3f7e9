"""The command line: verbs parse, call and print."""
