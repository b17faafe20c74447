"""The command line, `headrace`. One module per family of commands; `main` combines them."""
