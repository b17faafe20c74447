"""The command line, `headrace`. One module per family of commands; `main` puts them together."""
